#!/usr/bin/env bun
/**
 * Language-tag proxy: stands between Sonarr or Radarr and Prowlarr, and writes what an indexer says of a release's
 * language into its title, where the clients' custom formats see it:
 *
 *     <title>Show.S01E01.1080p.WEB-GRP</title> <newznab:attr name="language" value="French"/>
 *     <title>Show.S01E01.MULTi.VFF.1080p.WEB-GRP</title> …
 *
 * All else passes through untouched. Read on from top to bottom: configuration, rules, feed, proxy, command line. To
 * run it: `BACKEND_URL=http://prowlarr:9696 bun proxy.ts`, or `bun proxy.ts --help`.
 */
import { isUtf8 } from "node:buffer";
import { hostname } from "node:os";
import { parseArgs, promisify } from "node:util";
import zlib from "node:zlib";
import { XMLParser } from "fast-xml-parser";
import { version } from "./package.json";

// ─── Configuration: what the environment says ───────────────────────────────────────────────────────────────────────

export interface Config {
  /** Where requests go: scheme, credentials, host, port and URL base, without a slash at the end. */
  backend: string;
  /** The same for a log: without credentials. */
  backendName: string;
  /** The backend's URL base, such as `/prowlarr`, or empty. */
  urlBase: string;
  /** The proxy's own key; empty where there is none. */
  apiKey: string;
  port: number;
  /** Milliseconds that the backend may take until its answer begins. */
  timeout: number;
  log: Log;
}

type Environment = Record<string, string | undefined>;

/** A mistake in how the program was called: the message says what to do. */
export class UsageError extends Error {}

/**
 * Reads the configuration from environment variables; an empty one counts as not set.
 *
 * @throws UsageError that names the variable and what is expected
 */
export function readConfig(env: Environment): Config {
  const url = URL.parse(env["BACKEND_URL"]?.trim() ?? "");
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash)
    throw new UsageError(
      "BACKEND_URL must be Prowlarr's address, such as http://prowlarr:9696 or http://nas:9696/prowlarr.",
    );
  url.pathname = url.pathname.replace(/\/+$/, "");
  const urlBase = url.pathname === "/" ? "" : url.pathname;
  const credentials = url.username && `${url.username}${url.password && `:${url.password}`}@`;
  return {
    backend: `${url.protocol}//${credentials}${url.host}${urlBase}`,
    backendName: `${url.protocol}//${url.host}${urlBase}`,
    urlBase,
    apiKey: env["BACKEND_API_KEY"]?.trim() ?? "",
    port: readPort(env),
    timeout: 1000 * readNumber(env, "BACKEND_TIMEOUT", 120, 86_400, "a number of seconds from 1 to 86400"),
    log: createLog(readLogLevel(env)),
  };
}

function readPort(env: Environment): number {
  return readNumber(env, "PORT", 8080, 65_535, "a port number from 1 to 65535");
}

function readNumber(env: Environment, name: string, preset: number, most: number, expected: string): number {
  const value = env[name]?.trim() || String(preset);
  if (!/^\d{1,5}$/.test(value) || Number(value) < 1 || Number(value) > most)
    throw new UsageError(`${name} must be ${expected}, not ${JSON.stringify(value)}.`);
  return Number(value);
}

const LOG_LEVELS = ["debug", "info", "warn"] as const;
type LogLevel = (typeof LOG_LEVELS)[number];

function readLogLevel(env: Environment): LogLevel {
  const value = env["LOG_LEVEL"]?.trim().toLowerCase() || "info";
  const level = LOG_LEVELS.find((level) => level === value);
  if (!level) throw new UsageError(`LOG_LEVEL must be debug, info or warn, not ${JSON.stringify(value)}.`);
  return level;
}

/** One function a level; those below the level that was asked for do nothing. */
export type Log = Record<LogLevel, (line: string) => void>;

function createLog(least: LogLevel): Log {
  // A line is a line, whatever control characters a title or a search holds.
  const write = (line: string) => console.log(line.replace(/[\p{Cc}\p{Zl}\p{Zp}]/gu, "\uFFFD"));
  const quiet = () => {};
  return { debug: least === "debug" ? write : quiet, info: least === "warn" ? quiet : write, warn: write };
}

// ─── Rules: which values are French, and where in a release title the tag goes ──────────────────────────────────────
//
// Pure functions; the first part of proxy.test.ts is the table that they are held to. Their measure is what Sonarr's
// and Radarr's own parsers make of the result: they find French, and all else (name, year, season, episodes, quality,
// revision, group, hash, edition) is as it was before.
//
// The words of a title stand in lists and the patterns are built from them: to add a streaming service or a language,
// add a word. A hyphen in a word is any separator or none: WEB-DL is WEB-DL, WEB.DL, WEB DL and WEBDL.

/** What a French release gets: several languages, among them the French of France. */
const TAG = "MULTi.VFF";

const FRENCH_WORDS = "french francais francaise fr fra fre vf vff vfq vfi vf2 vof truefrench";
const SUBTITLE_WORDS = "sub subs subbed subtitle subtitles subtitled sous subfrench vost vosta vostfr stfr";

const FRENCH_TAGS = "VFF VOF VFQ VFI VF2 TRUEFRENCH FRENCH VF";
const OTHER_TAGS = `MULTi VO VOA VOST VOSTFR SUBFRENCH SUBFORCED ENG ENGLISH FR FRE FRA AUDIO DUAL DUBBED DL WiTH AD
  COMPLETE INTEGRALE INTÉGRALE PROPER REPACK RERIP REAL iNTERNAL LIMITED UNRATED EXTENDED REMASTERED RESTORED UNCUT
  CUSTOM HYBRID IMAX HC HSBS 3D`;

const RESOLUTIONS = "4K 8K UHD FHD";
const SOURCES = `WEB-DL WEB-Rip WEB-Mux WEB-HD WEB-HDRip WEB-DLRip Blu-Ray MBluRay BD BD-Rip BD-Mux BD-Remux BD-Light
  BD-Full BD25 BD50 BR-Rip UHD-BD UHD-BDRip UHD-Remux Remux HD-DVD HD-Light 4K-Light mHD HD-TV SD-TV PDTV DSR TV-Rip
  VOD-Rip HD-Rip HD-CAM DVD DVD5 DVD9 DVDR DVD-Rip DVD-Scr`;
const CODECS = "x264 x265 x266 H-264 H-265 H-266 HEVC AVC AV1 VP9 XviD DivX MPEG-2 MPEG-4";
const PICTURES = "HDR HDR10 HDR10+ HDR10Plus DV DoVi SDR 8-bit 10-bit Hi10 Hi10P";
const SOUNDS = "DTS DTS-HD DTS-X TrueHD Atmos AC3 EAC3 DD DDP DD+ AAC FLAC Opus PCM LPCM MP3";
/** Streaming services count only next to a WEB: many are words that a name may hold as well. */
const SERVICES = `Amazon AMZN ADN ATV ATVP CANAL+ CR CRAV DP DSNP HBO HMAX HULU iP iT MAX MYCANAL NF Netflix PCOK PMTP
  SALTO STAN TF1`;

const SEASON_WORDS = "Saison Season Stagione Temporada";
const EPISODE_WORDS = "E EP Épisode Episode Episodio Cap";
const PART_WORDS = "Part Partie Vol Volume";
const EXTENSIONS = "mkv mp4 avi ts m2ts wmv mpg iso nzb torrent srt ass sub rar zip";

const words = (list: string) => list.split(/\s+/);
/** A pattern for any one word of the lists. */
const anyOf = (...lists: string[]) =>
  `(?:${lists.flatMap(words).join("|").replaceAll("+", "\\+").replaceAll("-", "[ ._-]?")})`;
/** The letters with which the words of a list begin. */
const initialsOf = (list: string) =>
  words(list)
    .map((word) => word[0])
    .join("");
const pattern = (source: string, flags = "") => new RegExp(source, `iu${flags}`);

const START = String.raw`(?<![\p{L}\p{N}])`;
const END = String.raw`(?![\p{L}\p{N}])`;
const GAP = "[ ._-]";

const FORMAT = String.raw`(?:\d{3,4}(?:[pi]|x\d{3,4})|${anyOf(RESOLUTIONS, CODECS, PICTURES)}|${anyOf(SOUNDS)}(?:${GAP}?\d[ ._]\d)?)`;
/** A WEB that stands alone is a source when a format, the group or the end follows, else a word ("Web of Lies"). */
const SOURCE = String.raw`(?:${anyOf(SOURCES)}|${anyOf(SERVICES)}(?=${GAP}WEB)|WEB(?=${GAP}${FORMAT}|-|\)|[ .]*$))`;
const QUALITY = `(?:${FORMAT}|${SOURCE})${END}`;
const EXTENSION = String.raw`(?:\.${anyOf(EXTENSIONS)})?$`;
const GROUP = String.raw`(?<=-)(?=\d*\p{L})[\p{L}\p{N}]+${EXTENSION}`;
/** What a title says of picture and sound, where it isn't the group's name: before the first one goes the tag. */
const INDICATOR = pattern(`${START}(?!${GROUP})${QUALITY}`, "g");

// What ends the name: a season or an episode, a date, a year. It is taken whole, for a tag inside it loses episodes.
const PART = String.raw`(?:${GAP}?${anyOf(PART_WORDS)}${GAP}?\d{1,2})?`;
const NUMBER = String.raw`\d{1,5}(?:v\d|[ab])?`;
const SEASON = String.raw`(?:S\d{1,4}|${anyOf(SEASON_WORDS)}${GAP}?\d{1,3})`;
const EPISODE = `${anyOf(EPISODE_WORDS)}${GAP}?${NUMBER}`;
const MORE_EPISODES = String.raw`(?:${GAP}{0,3}(?:S\d{1,4}${GAP}?)?(?:EP?${GAP}?${NUMBER}|\d{0,2}x\d\d?(?!\d))|[-~_]\d{1,5}|${GAP}\d{2,4}(?![pix\d])){0,50}`;
const YEAR = String.raw`(?:18[89]\d|19\d\d|20\d\d)`;
const MONTH_AND_DAY = String.raw`${GAP}?(?:0[1-9]|1[0-2])${GAP}?(?:0[1-9]|[12]\d|3[01])`;

/** The first that is found ends the name. */
const MARKERS = [
  // S01E01, S01E01-E03, S15 E06, S6.E1E3, Season 1 - Episode 01, (S05E06-08 of 24), S01E11.5. Sonarr cuts off all up to
  // `S01E01-` before it looks for the group, so that hyphen belongs to it.
  String.raw`${START}${SEASON}${GAP}{0,3}(?:${EPISODE}|x\d\d?)${MORE_EPISODES}(?:\.5)?(?:[ ._]of[ ._](?:\d+|XX))?${END}-?`,
  // 1x01, 1x01_02, 2010x15 - 2010x16
  String.raw`${START}(?:\d{1,2}|${YEAR})x\d{1,3}${MORE_EPISODES}${END}`,
  // 2023-05-26, 2015.0308, 1954-01-23 05 00 00
  String.raw`${START}${YEAR}${MONTH_AND_DAY}(?:[ ._]\d\d){0,3}${PART}${END}`,
  // E07-E08, Episode 99-100, Ep.01
  `${START}${EPISODE}${MORE_EPISODES}${END}`,
  // S01, S01-S09, Saison 1, Season 1 S01
  String.raw`${START}${SEASON}(?:${GAP}{0,3}S?\d{1,4}){0,3}${PART}${END}`,
  // 2019, 2049.2017, 1984 (2020), 1979-2015; a title that begins with a year begins with its name.
  String.raw`(?<=[^\p{L}\p{N}])${YEAR}(?:[ ._([–-]{1,3}${YEAR})*${END}`,
].map((source) => pattern(source));
/** ` - 12 `, `_-_12v2_`, `Title-01[`: an anime episode for Sonarr, a part of the name for Radarr. */
const ABSOLUTE_NUMBER = pattern(String.raw`(?:[ ._]-[ ._]|(?<=\w)-)#?\d{2,4}(?:\.5)?(?:[-~]\d{1,4})?(?:v\d)?${END}`);

/** Sonarr sees no language in a tag right before a word that begins with SUB: there it speaks of subtitles. */
const FRENCH_TAG = pattern(`${START}${anyOf(FRENCH_TAGS)}${END}(?!${GAP}{0,3}sub)`, "g");
const MULTI_TAG = pattern(`${START}MULTi${END}(?!${GAP}{0,3}(?:sub|${anyOf(FRENCH_TAGS)}${END}))`, "g");
/** What follows a tag: another tag, a quality indicator, a bracket, the group, the end. */
const AFTER_A_TAG = pattern(
  String.raw`[ ._\-)\]}]*(?:[([{]|(?:${anyOf(FRENCH_TAGS, OTHER_TAGS)}|${QUALITY})${END}|${GROUP}|${EXTENSION})`,
  "y",
);
/** Group, hash and extension at the end of a title. */
const TAIL = pattern(String.raw`(?:-(?=\d*\p{L})[\p{L}\p{N}]+)?(?:[ ._]?[([][^)\]]*[)\]])*${EXTENSION}`);

/** What happens to a title and why: `insert` goes in at the index `at`; where it is empty the title stays. */
export interface Decision {
  at: number;
  insert: string;
  reason: "already French" | "MULTi" | "indicator" | "marker" | "tail" | "before SUB" | "too long";
  /** The word that decided: the tag or the quality indicator that was found. */
  found: string;
  /** What ends the name, such as `S02E01` or `2019`; empty where nothing does. */
  marker: string;
}

/**
 * Whether the value of a `language` attribute says that there is French audio: `French`, `English, Français`, `fr-FR`,
 * `VFF`. Letter case and accents don't matter. What a value says of subtitles (`French subtitles`, `VOSTFR`) doesn't
 * count, and neither do words that only begin alike (`Frisian`).
 */
export function isFrench(value: string): boolean {
  const plain = value.normalize("NFD").replace(/\p{M}/gu, "");
  return plain.split(/[,;/|&+]/).some((language) => FRENCH.test(language) && !SUBTITLES.test(language));
}
const FRENCH = pattern(`${START}${anyOf(FRENCH_WORDS)}${END}`);
const SUBTITLES = pattern(`${START}${anyOf(SUBTITLE_WORDS)}${END}`);

/**
 * Decides what a release title of French audio becomes. The result is idempotent: a title with its tag in place is
 * `already French`.
 */
export function decide(title: string): Decision {
  const decision = findPlace(title);
  const isLost = decision.insert && /sub/i.test(title) && findPlace(apply(title, decision)).reason !== "already French";
  return isLost ? { ...decision, insert: "", reason: "before SUB" } : decision;
}

function findPlace(title: string): Decision {
  const decision = { at: 0, insert: "", found: "", marker: "" };
  if (title.length > LONGEST_TITLE) return { ...decision, reason: "too long" };

  const name = findNameEnd(title);
  const indicator = findIndicator(title, name.end);
  decision.marker = name.marker;

  // In a title that is all in capitals FRENCH may be a word of the name (THE.FRENCH.DISPATCH), unless MULTI precedes it.
  const inCapitals = !/\p{Ll}/u.test(title.slice(0, indicator?.index));
  const isFrenchTag = (tag: string, before: string) =>
    tag !== "VF" && tag === tag.toUpperCase() && (!inCapitals || AFTER_MULTI.test(before));
  const french = findTag(FRENCH_TAG, title, name.end, isFrenchTag);
  if (french) return { ...decision, reason: "already French", found: french[0] };

  const multi = findTag(MULTI_TAG, title, name.end, (tag) => tag === "MULTi" || tag === "MULTI");
  if (multi) {
    const at = multi.index + multi[0].length;
    return { ...decision, reason: "MULTi", found: multi[0], at, insert: title[at] === "_" ? ".VFF." : ".VFF" };
  }
  if (indicator) {
    const at = name.certain ? beforeBrackets(title, indicator.index, name.end) : insideBrackets(title, indicator.index);
    return { ...decision, reason: "indicator", found: indicator[0], ...tagBeside(title, at) };
  }
  if (name.end) return { ...decision, reason: "marker", ...tagBeside(title, afterMarker(title, name.end)) };
  return { ...decision, reason: "tail", ...tagBeside(title, title.search(TAIL)) };
}
const AFTER_MULTI = new RegExp(`${START}MULT[Ii]${GAP}$`, "u");
/** Characters. A file name has at most 255 bytes, so what is much longer is no release's title. */
const LONGEST_TITLE = 1000;

function findNameEnd(title: string): { end: number; marker: string; certain: boolean } {
  for (const marker of MARKERS) {
    const match = marker.exec(title);
    if (match) return { end: match.index + match[0].length, marker: match[0], certain: true };
  }
  const number = ABSOLUTE_NUMBER.exec(title);
  if (number) return { end: number.index + number[0].length, marker: number[0], certain: false };
  return { end: 0, marker: "", certain: false };
}

/** The first quality indicator after the name; one at the start of a title, or in a group's brackets there, is none. */
function findIndicator(title: string, nameEnd: number): RegExpExecArray | null {
  INDICATOR.lastIndex = nameEnd || /^\[[^\]]*\]|^/.exec(title)![0].length || 1;
  return INDICATOR.exec(title);
}

/** The first tag that is surely one, or that stands where tags stand: after the name, and followed by its like. */
function findTag(tags: RegExp, title: string, nameEnd: number, surely: (tag: string, before: string) => boolean) {
  let likely: RegExpExecArray | undefined;
  for (const match of title.matchAll(tags)) {
    if (surely(match[0], title.slice(0, match.index))) return match;
    AFTER_A_TAG.lastIndex = match.index + match[0].length;
    if (match.index >= nameEnd && (match[0] === "VF" || AFTER_A_TAG.test(title))) likely ??= match;
  }
  return likely;
}

function beforeBrackets(title: string, at: number, nameEnd: number): number {
  while (at > nameEnd && "([{【".includes(title[at - 1]!)) at--;
  return at;
}

/** Where the name's end can't be told, Radarr reads all before a bracket as the name. Sonarr knows `[WEB ` as a start. */
function insideBrackets(title: string, at: number): number {
  return /^[([]WEB[ .]/i.test(title.slice(at - 1)) ? at + 4 : at;
}

/** Past the marker's closing bracket, one separator (`_` must not touch the tag) and words that begin with SUB. */
function afterMarker(title: string, nameEnd: number): number {
  return matchAt(AFTER_MARKER, title, nameEnd);
}
const AFTER_MARKER = pattern(String.raw`[)\]}】]?(?:(?:${GAP}*sub[\p{L}\p{N}]*)+[ ._]?|[ ._])?`, "y");

/**
 * The tag with its separators for the index `at`: the title's own, a dot or a space. Never an underscore: to the `\b`
 * of the clients' custom formats that is a letter, so `VFF_` is not VFF.
 */
function tagBeside(title: string, at: number): { at: number; insert: string } {
  const before = title[at - 1] ?? "";
  const after = title[at] ?? "";
  const separator = [before, after].includes(" ") || (!/[._]/.test(before) && title.includes(" ")) ? " " : ".";
  const left = /[ ._\-([{【]/.test(before) ? "" : separator;
  const right = after === "" || (left && /[ .\-]/.test(after)) ? "" : separator;
  return { at, insert: left + TAG + right };
}

/** The title that a decision leads to. */
export function apply(title: string, { at, insert }: Decision): string {
  return title.slice(0, at) + insert + title.slice(at);
}

/** Why a title was tagged as it was, or not, in a user's words. */
export function explain({ reason, found, marker }: Decision): string {
  const name = marker ? `name ends after "${marker}"` : "no year or episode found";
  switch (reason) {
    case "already French":
      return `already French: "${found}"`;
    case "MULTi":
      return `${found} found: ".VFF" added`;
    case "indicator":
      return `${name}; tag goes before "${found}"`;
    case "marker":
      return `${name}; no quality indicator follows, so the tag goes right there`;
    case "tail":
      return "no year, episode or quality indicator found; tag goes to the end, before group and file extension";
    case "before SUB":
      return "a word that begins with SUB would follow the tag, and Sonarr would take it for subtitles: left as it is";
    case "too long":
      return `longer than ${LONGEST_TITLE} characters: not a release title`;
  }
}

// ─── Feed: a search response with its French titles tagged ──────────────────────────────────────────────────────────
//
// The feed is spliced, never printed anew: all bytes but the inserted tags are the backend's own. It is read as Latin-1,
// one character a byte, so that an index into the text is an offset in the feed, whatever its encoding. All searches go
// forward from where the last one ended, so that no feed, however hostile, takes more than linear time.

/** A release of French audio: its title as a client reads it, what happens to it, and how far into the element. */
export interface FrenchRelease {
  title: string;
  decision: Decision;
  offset: number;
}

/** A search response, tagged: the backend's bytes in pieces, with the tags between them. */
export interface TaggedFeed {
  pieces: (Uint8Array | string)[];
  items: number;
  french: FrenchRelease[];
}

/**
 * Tags the French releases of a search response.
 *
 * @param feed the response's bytes, uncompressed, in any encoding that contains ASCII
 * @returns one piece, the feed itself, where there is nothing to do: no French, not a feed, not well-formed
 */
export function tagFeed(feed: Uint8Array): TaggedFeed {
  const untouched = { pieces: [feed], items: 0, french: [] };
  const tagged = tagInParts(feed, PART_SIZE);
  return tagged ?? (feed.length > PART_SIZE ? tagInParts(feed, feed.length) : undefined) ?? untouched;
}
/** Bytes. A large feed is read in parts that fit into the processor's cache. */
const PART_SIZE = 256 * 1024;

/** `tagFeed`, reading `size` bytes at a time; nothing where the feed isn't well-formed, or not when cut into parts. */
function tagInParts(feed: Uint8Array, size: number): TaggedFeed | undefined {
  const bytes = Buffer.from(feed.buffer, feed.byteOffset, feed.byteLength);
  const parts = partsOf(bytes, size);
  const whole = parts.length === 1 ? bytes.toString("latin1") : undefined;
  const textOf = ({ start, end }: Span) => whole ?? bytes.toString("latin1", start, end);
  if (!parts.some((part) => mentionsOfFrench(textOf(part)).length > 0)) {
    const items = parts.reduce((sum, part) => sum + (textOf(part).match(/<item[\s>/]/g)?.length ?? 0), 0);
    return { pieces: [feed], items, french: [] };
  }

  const tagged: TaggedFeed = { pieces: [], items: 0, french: [] };
  const place: Place = { ancestors: [], hasRoot: false };
  let copied = 0;
  for (const part of parts) {
    const xml = textOf(part);
    const items = readItems(xml, mentionsOfFrench(xml), place, part.end === feed.length);
    if (!items) return undefined;
    tagged.items += items.length;
    for (const { title, french } of items) {
      const release = french && title ? readRelease(xml.slice(title.start, title.end)) : undefined;
      if (!release) continue;
      tagged.french.push(release);
      if (!release.decision.insert) continue;
      const at = part.start + title!.start + release.offset;
      tagged.pieces.push(feed.subarray(copied, at), release.decision.insert);
      copied = at;
    }
  }
  tagged.pieces.push(feed.subarray(copied));
  return tagged;
}

/** Cuts a feed behind items, into parts of about `size` bytes. */
function partsOf(feed: Buffer, size: number): Span[] {
  const parts: Span[] = [];
  for (let start = 0; start < feed.length;) {
    const cut = start + size < feed.length ? feed.lastIndexOf("</item>", start + size) + "</item>".length : 0;
    const end = cut > start ? cut : feed.length;
    parts.push({ start, end });
    start = end;
  }
  return parts;
}

/** Where the tags start that name a language which may be French: a look, before any reading. */
function mentionsOfFrench(xml: string): number[] {
  const starts: number[] = [];
  for (LANGUAGE.lastIndex = 0; LANGUAGE.test(xml);) {
    const start = xml.lastIndexOf("<", LANGUAGE.lastIndex);
    const next = xml.indexOf("<", LANGUAGE.lastIndex);
    if (start >= 0) starts.push(start);
    LANGUAGE.lastIndex = next < 0 ? xml.length : next;
  }
  return starts;
}
/** An attribute's value that begins with `language`, unless no French word can begin in the value after it (English). */
const LANGUAGE = pattern(String.raw`=\s*["']\s*language(?!" value="[^"<&${initialsOf(FRENCH_WORDS)}]*")`, "g");

/** A release: the span of its own title's content, and whether one of its languages is French. */
type Item = { title: Span | undefined; french: boolean };
type Span = { start: number; end: number };

/** The items of a feed's part, or nothing where it isn't well-formed, or ends within an item. */
function readItems(xml: string, mentions: number[], place: Place, isLast: boolean): Item[] | undefined {
  const items: Item[] = [];
  let item: Item | undefined;
  let itemDepth = 0;
  let next = 0;

  const lookForFrench = (start: number, end: number) => {
    while (mentions[next]! < start) next++;
    for (; mentions[next]! < end; next++)
      item!.french ||= saysFrench(xml.slice(mentions[next], matchAt(XML_TAG, xml, mentions[next]!)));
  };

  const visitor: Visitor = {
    open(name, depth, start, end) {
      if (!item && name === "item") {
        items.push((item = { title: undefined, french: false }));
        itemDepth = depth;
      } else if (item && depth === itemDepth + 1) {
        if (name === "title") item.title ??= { start: end, end: 0 };
        lookForFrench(start, end);
      }
    },
    close(depth, start) {
      if (item?.title && depth === itemDepth + 1) item.title.end ||= start;
      if (depth === itemDepth) item = undefined;
    },
    leaves(start, end, depth) {
      if (!item)
        for (const _ of xml.slice(start, end).matchAll(/<item[\s>/]/g)) items.push({ title: undefined, french: false });
      if (!item || depth !== itemDepth + 1) return;
      item.title ??= findTitle(xml, start, end);
      lookForFrench(start, end);
    },
  };
  return walk(xml, place, isLast, visitor) && !item ? items : undefined;
}

/** Where in a document a part of it begins: within which elements, and whether its root element has been seen. */
interface Place {
  ancestors: string[];
  hasRoot: boolean;
}

/** What `walk` meets; `depth` is the number of an element's ancestors. */
interface Visitor {
  /** A start tag from `start` to `end`. */
  open(name: string, depth: number, start: number, end: number): void;
  /** An end tag that starts at `start`. */
  close(depth: number, start: number): void;
  /** Elements side by side that hold nothing but text, from the first one's start to the last one's end. */
  leaves(start: number, end: number, depth: number): void;
}

/**
 * Walks through the elements of a document's part, and moves `place` on. Returns whether it is well-formed as far as that
 * can shift a title: tags, attributes, nesting, comments, CDATA sections, references (XML 1.0, §2 to §4). Nothing is
 * expanded.
 */
function walk(xml: string, place: Place, isLast: boolean, visitor: Visitor): boolean {
  const { ancestors } = place;
  let stray = strayAmpersand(xml, 0);
  let at = !place.hasRoot && xml.startsWith(BYTE_ORDER_MARK) ? BYTE_ORDER_MARK.length : 0;
  for (;;) {
    const start = xml.indexOf("<", at);
    const depth = ancestors.length;
    if (depth === 0 && xml.slice(at, start < 0 ? undefined : start).trim()) return false;
    if (start < 0) return stray === Infinity && (!isLast || (place.hasRoot && depth === 0));

    const mark = xml[start + 1];
    if (mark === "/") {
      const name = ancestors.pop();
      if (name === undefined || !xml.startsWith(name, start + 2)) return false;
      at = matchAt(END_OF_TAG, xml, start + 2 + name.length);
      visitor.close(depth - 1, start);
    } else if (mark === "!" || mark === "?") {
      at = endOfSection(xml, start);
      if (stray < start) return false;
      if (stray < at) stray = strayAmpersand(xml, at);
    } else {
      if (place.hasRoot && depth === 0) return false;
      place.hasRoot = true;
      // Nearly all that a feed holds are leaves in plain spelling: those are taken as many at a time as a pattern can.
      at = depth > 0 ? matchAt(LEAVES, xml, start) : 0;
      const isTag = at === 0;
      if (isTag) at = matchAt(XML_TAG, xml, start);
      if (!isTag || xml[at - 2] === "/") {
        visitor.leaves(start, at, depth);
      } else {
        const name = xml.slice(start + 1, matchAt(NAME, xml, start + 1));
        visitor.open(name, depth, start, at);
        if (ancestors.push(name) > DEEPEST) return false;
      }
    }
    if (at <= 0) return false;
  }
}
const BYTE_ORDER_MARK = "\xEF\xBB\xBF";
/** A feed is five elements deep; what goes deeper than XML parsers do isn't one (libxml2: 256). */
const DEEPEST = 256;
const NAME = /[^\s<>/&"'=!?]{1,1000}/y;
const ATTRIBUTES = String.raw`(?:\s+[^\s<>/&"'=]+\s*=\s*(?:"[^"<]*"|'[^'<]*')){0,1000}\s*`;
const XML_TAG = new RegExp(`<${NAME.source}${ATTRIBUTES}/?>`, "y");
const END_OF_TAG = /\s*>/y;
const LEAVES = /(?:<([\w:.-]{1,100})(?: [\w:.-]+="[^"<]*"){0,50} ?(?:\/>|>[^<]*<\/\1>)\s*){1,50}/y;

/** The content of the first `<title>` among leaves; in most feeds it is the first of them. */
function findTitle(xml: string, start: number, end: number): Span | undefined {
  const found = xml.startsWith("<title>", start) ? 0 : xml.slice(start, end).search(/<title[\s>]/);
  if (found < 0) return undefined;
  const content = matchAt(XML_TAG, xml, start + found);
  if (content === 0 || xml[content - 2] === "/") return undefined;
  return { start: content, end: xml.indexOf("<", content) };
}

/** Where the match of a sticky (or, from there on, a global) pattern at an offset ends, or 0. */
function matchAt(pattern: RegExp, text: string, at: number): number {
  pattern.lastIndex = at;
  pattern.test(text);
  return pattern.lastIndex;
}

/** The end of a comment, a CDATA section, a processing instruction or the DOCTYPE; -1 where there is none. */
function endOfSection(xml: string, start: number): number {
  for (const [opening, closing] of SECTIONS) {
    if (!xml.startsWith(opening, start)) continue;
    const end = xml.indexOf(closing, start + opening.length);
    return end < 0 ? -1 : end + closing.length;
  }
  return endOfDoctype(xml, start);
}
const SECTIONS = [
  ["<!--", "-->"],
  ["<![CDATA[", "]]>"],
  ["<?", "?>"],
] as const;

function endOfDoctype(xml: string, start: number): number {
  if (!xml.startsWith("<!DOCTYPE", start)) return -1;
  let inSubset = false;
  for (DOCTYPE_PART.lastIndex = start; DOCTYPE_PART.test(xml);) {
    const last = xml[DOCTYPE_PART.lastIndex - 1];
    if (last === "[") inSubset = true;
    else if (last === "]") inSubset = false;
    else if (last === ">" && !inSubset) return DOCTYPE_PART.lastIndex;
  }
  return -1;
}
const DOCTYPE_PART = /[^"'<>[\]]+|"[^"]*"|'[^']*'|<!--[^]*?-->|<(?!!--)|[>[\]]/y;

/** The next `&` that begins no reference, or Infinity. */
function strayAmpersand(xml: string, from: number): number {
  return (matchAt(STRAY_AMPERSAND, xml, from) || Infinity) - 1;
}
const STRAY_AMPERSAND = /&(?!(?:#\d+|#x[\da-f]+|[^\s<>&;#"']+);)/gi;

/**
 * A function of a piece of a feed that remembers its answers: a feed's attributes are few different ones, and its titles
 * come again with each of the clients' RSS syncs. Of a stranger's text it remembers no more than a thousand short ones.
 */
function remembering<Answer>(answer: (text: string) => Answer): (text: string) => Answer {
  const answers = new Map<string, Answer>();
  return (text) => {
    const known = answers.get(text);
    if (known !== undefined) return known;
    // A copy: a slice would keep the whole feed in memory that it was cut from.
    const copy = Buffer.from(text, "latin1").toString("latin1");
    const given = answer(copy);
    if (answers.size === 1000) answers.clear();
    if (text.length <= LONGEST_TITLE) answers.set(copy, given);
    return given;
  };
}

/** Whether a tag is a `language` attribute that says French. */
const saysFrench = remembering((tag) => {
  if (tag.length > LONGEST_TITLE) return false;
  const { element, name, value } = parseTag(readable(tag));
  return /^(?:.*:)?attr$/.test(element) && name.trim().toLowerCase() === "language" && isFrench(value);
});

/** The parser resolves references; a tag that has none is read by a pattern, for a feed may hold thousands of values. */
function parseTag(tag: string): { element: string; name: string; value: string } {
  const found = { element: tag.slice(1, matchAt(NAME, tag, 1)), name: "", value: "" };
  if (!tag.includes("&")) {
    ATTRIBUTE.lastIndex = 0;
    for (let match; (match = ATTRIBUTE.exec(tag));) {
      const [, key, value] = match;
      if (key === "name" || key === "value") found[key] = value!.slice(1, -1);
    }
    return found;
  }
  try {
    const [attributes] = Object.values(parser.parse(tag.replace(/\/?>$/, "/>"))) as [object];
    return { ...found, ...attributes, element: found.element };
  } catch {
    // fast-xml-parser refuses attributes such as __proto__.
    return found;
  }
}
const ATTRIBUTE = /([^\s"'=]+)\s*=\s*("[^"]*"|'[^']*')/g;
const parser = new XMLParser({
  ignoreAttributes: false,
  attributeNamePrefix: "",
  parseTagValue: false,
  trimValues: false,
  htmlEntities: true,
});

/** Decides on the content of a title element; nothing where it is empty or holds elements. */
const readRelease = remembering((content): FrenchRelease | undefined => {
  const raw = readable(content);
  const { text, shifts } = withoutMarkup(raw);
  const title = text.trim();
  if (!title) return undefined;
  const decision = decide(title);
  const index = text.length - text.trimStart().length + decision.at;
  const offset = index + shifts.findLast(({ from }) => from <= index)!.by;
  return { title, decision, offset: raw === content ? offset : Buffer.byteLength(raw.slice(0, offset)) };
});

/** A title with references and CDATA sections resolved, and by how much its characters then stand further on in `raw`. */
function withoutMarkup(raw: string): { text: string; shifts: { from: number; by: number }[] } {
  const shifts = [{ from: 0, by: 0 }];
  if (!/[&<]|\]\]>/.test(raw)) return { text: raw, shifts };
  if (raw.length > 10 * LONGEST_TITLE) return { text: "", shifts };
  if (/<|\]\]>/.test(raw.replace(/<!\[CDATA\[[^]*?\]\]>/g, ""))) return { text: "", shifts };
  let by = 0;
  let inData = false;
  const text = raw.replace(/<!\[CDATA\[|\]\]>|&[^\s&;<>]+;/g, (markup: string, index: number) => {
    const isReference = markup[0] === "&";
    const character = inData && markup !== "]]>" ? markup : isReference ? readReference(markup) : "";
    if (!isReference) inData = markup !== "]]>";
    by += markup.length - character.length;
    shifts.push({ from: index + markup.length - by + (isReference ? 0 : 1), by });
    return character;
  });
  return { text, shifts };
}

/** What was read as Latin-1, one character a byte, as UTF-8 where it is that; Latin-1 and broken UTF-8 stay as read. */
function readable(text: string): string {
  if (/^[\0-\x7F]*$/.test(text)) return text;
  const bytes = Buffer.from(text, "latin1");
  return isUtf8(bytes) ? bytes.toString() : text;
}

/** The character that a reference such as `&amp;`, `&#233;` or `&#xE9;` stands for; an unknown one stays as it is. */
function readReference(reference: string): string {
  const number = reference.match(/^&#(?:x([\da-f]+)|(\d+));$/i);
  const code = number ? parseInt(number[1] ?? number[2]!, number[1] ? 16 : 10) : NaN;
  return code <= 0x10ffff ? String.fromCodePoint(code) : (CHARACTERS[reference] ?? reference);
}
const CHARACTERS: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'" };

// ─── Proxy: a request comes in, goes to the backend, and its answer goes back ───────────────────────────────────────

/** What a request is for. All else never reaches the backend, so that its web page and its key stay private. */
type Route = "health" | "search" | "pass";

function routeOf(path: string): Route | undefined {
  if (HIDDEN_DOT_SEGMENT.test(path)) return undefined;
  if (path === "/health") return "health";
  if (/^\/\d+\/api$/.test(path)) return "search";
  if (/^\/(?:\d+\/download$|api\/v1\/.)/.test(path)) return "pass";
  return undefined;
}
/** A dot segment that the URL parser leaves as it is, such as `..%2F`, encoded however often. */
const HIDDEN_DOT_SEGMENT = /(?:\/|%(?:25)*(?:2f|5c))(?:\.|%(?:25)*2e){1,2}(?=\/|%(?:25)*(?:2f|5c)|$)/i;

/**
 * Serves until it is stopped.
 *
 * @throws where the port is taken, or not this user's to take
 */
export function serve(config: Config): Bun.Server<undefined> {
  return Bun.serve({
    port: config.port,
    // A search may be silent for as long as BACKEND_TIMEOUT allows, where Bun would hang up after 10 seconds.
    idleTimeout: 0,
    development: false,
    reusePort: false,
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    fetch: (request, server) => handle(request, server, config),
  });
}

async function handle(request: Request, server: Bun.Server<undefined>, config: Config): Promise<Response> {
  const started = performance.now();
  const { pathname, href } = new URL(request.url.replace(/^(?=\/)/, "http://proxy"));
  // `search` would drop a lone question mark.
  const query = /\?.*|$/.exec(href)![0];
  // The backend's own links begin with its URL base, which `config.backend` holds already.
  const path = pathname.startsWith(`${config.urlBase}/`) ? pathname.slice(config.urlBase.length) : pathname;
  const route = routeOf(path);
  const line = () => describe(request.method, path, query);
  const done = (outcome: string) => {
    config.log.info(`${line()} → ${outcome}, ${Math.round(performance.now() - started)} ms`);
  };
  const fail = ({ status, message }: Problem) => {
    done(`${status}: ${message}`);
    return failure(route, { status, message });
  };

  if (route === "health") return Response.json({ status: "ok" });
  if (!route) return fail(NO_ROUTE);
  try {
    const response = await ask(request, server, config, path + query);
    if (route === "search" && isFeed(request, response)) return await answerSearch(response, config.log, done);
    done(String(response.status));
    return passOn(response, () => {
      if (!request.signal.aborted) config.log.warn(`${line()}: the backend broke off its answer`);
    });
  } catch (error) {
    return fail(request.signal.aborted ? CLIENT_LEFT : problemOf(error, config));
  }
}

/** A request in a log's words: never with its key, its link or any other parameter than the search's kind and text. */
function describe(method: string, path: string, query: string): string {
  const parameters = new URLSearchParams(query);
  const type = parameters.get("t")?.replace(/\W/g, "").slice(0, 20);
  const text = parameters.get("q")?.slice(0, 200);
  return [method, path, type, text && JSON.stringify(text)].filter(Boolean).join(" ");
}

/** The request as it came, sent to the backend. */
async function ask(request: Request, server: Bun.Server<undefined>, config: Config, target: string): Promise<Response> {
  const slow = new AbortController();
  const timer = setTimeout(() => slow.abort(new NoAnswer()), config.timeout);
  try {
    return await fetch(config.backend + target, {
      method: request.method,
      headers: forwardedHeaders(request, server),
      body: request.body,
      signal: AbortSignal.any([request.signal, slow.signal]),
      redirect: "manual",
      decompress: false,
      // The backend is on the home network: HTTP_PROXY is not meant for it.
      proxy: false,
      timeout: false,
      // A connection that the backend has closed meanwhile: Bun asks once more on a new one, but only what has no body.
      keepalive: request.method === "GET" || request.method === "HEAD",
    });
  } finally {
    clearTimeout(timer);
  }
}
class NoAnswer extends Error {}

function forwardedHeaders(request: Request, server: Bun.Server<undefined>): Headers {
  const headers = new Headers(request.headers);
  const host = headers.get("host");
  const client = server.requestIP(request)?.address.replace(/^::ffff:/, "");
  removeHopByHop(headers);
  headers.delete("host");
  // Prowlarr builds the feed's download links from these, so that a download comes back through the proxy.
  if (client) headers.append("x-forwarded-for", client);
  if (host && !headers.has("x-forwarded-host")) headers.set("x-forwarded-host", host);
  if (!headers.has("x-forwarded-proto")) headers.set("x-forwarded-proto", "http");
  return headers;
}

/**
 * Takes out what speaks of a connection and not of the message (RFC 9110, §7.6.1). Transfer-Encoding is Bun's own: it
 * sets it as each side needs it, and reads from it that the answer to a HEAD has no Content-Length.
 */
function removeHopByHop(headers: Headers): void {
  const named = headers.get("connection")?.match(/[\w!#$%&'*+.^`|~-]+/g) ?? [];
  for (const name of [...HOP_BY_HOP, ...named]) headers.delete(name);
}
const HOP_BY_HOP = words(
  "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade expect",
);

/** Hands the backend's answer on as it comes, no faster than the client takes it. */
function passOn(response: Response, brokenOff: () => void): Response {
  removeHopByHop(response.headers);
  const { body, status, statusText, headers } = response;
  return new Response(body && relay(body, brokenOff), { status, statusText, headers });
}

/** A body that reports when it breaks off: Bun would print the error, and with it the URL and its key. */
async function* relay(body: ReadableStream<Uint8Array>, brokenOff: () => void): AsyncGenerator<Uint8Array> {
  try {
    yield* body;
  } catch (error) {
    brokenOff();
    throw error;
  }
}

function isFeed(request: Request, response: Response): boolean {
  const type = response.headers.get("content-type") ?? "";
  return response.status === 200 && request.method !== "HEAD" && /^[^;]*[/+]xml\b/i.test(type);
}

/** A search response, read to its end and tagged; what can't be understood goes on as it came. */
async function answerSearch(response: Response, log: Log, done: (outcome: string) => void): Promise<Response> {
  const { headers } = response;
  const received = await readWhole(response);
  const feed = await decoded(received, headers.get("content-encoding"));
  const { pieces, items, french } = tagFeed(feed ?? received);

  const tagged = french.filter(({ decision }) => decision.insert).length;
  done(`200, ${items} items, ${tagged} tagged`);
  for (const { title, decision } of french) log.debug(`  ${title} → ${apply(title, decision)} (${explain(decision)})`);

  removeHopByHop(headers);
  headers.delete("content-length");
  if (tagged > 0) headers.delete("content-encoding");
  return new Response(inOneWrite(tagged > 0 ? pieces : [received]), { headers });
}

/** A body that Bun sends at once: a plain one leaves an async handler in some thirty small writes (Bun 1.4.5). */
function inOneWrite(pieces: (Uint8Array | string)[]): ReadableStream {
  const source = {
    type: "direct",
    pull(controller: ReadableStreamDirectController) {
      for (const piece of pieces) controller.write(piece as string);
      controller.end();
      // Bun's collector doesn't see how much memory a large feed leaves behind, and would let it pile up.
      const [{ buffer }] = pieces as [Uint8Array<ArrayBuffer>];
      if (buffer.byteLength > LARGE_FEED) buffer.transfer(0);
    },
  };
  const size = pieces.reduce((sum, piece) => sum + piece.length, 0);
  return new ReadableStream(source as object, { highWaterMark: size + 1 });
}

/** The whole body of an answer. */
async function readWhole(response: Response): Promise<Uint8Array> {
  if (Number(response.headers.get("content-length")) > LARGEST_FEED) {
    await response.body?.cancel();
    throw new FeedTooLarge();
  }
  if (response.headers.has("content-length")) return await response.bytes();
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of response.body ?? []) {
    size += chunk.length;
    if (size > LARGEST_FEED) throw new FeedTooLarge();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
const LARGE_FEED = 1024 * 1024;
const LARGEST_FEED = 64 * 1024 * 1024;
class FeedTooLarge extends Error {}

/** A feed's bytes without their compression, or nothing where that isn't known or fails. */
async function decoded(bytes: Uint8Array, encoding: string | null): Promise<Uint8Array | undefined> {
  if (!encoding || /^identity$/i.test(encoding)) return bytes;
  try {
    return await DECODERS[encoding.trim().toLowerCase()]?.(bytes, { maxOutputLength: LARGEST_FEED });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ERR_BUFFER_TOO_LARGE") throw new FeedTooLarge();
    return undefined;
  }
}
type Decoder = (bytes: Uint8Array, options: { maxOutputLength: number }) => Promise<Uint8Array>;
const DECODERS: Record<string, Decoder> = {
  gzip: promisify(zlib.gunzip),
  "x-gzip": promisify(zlib.gunzip),
  deflate: promisify(zlib.inflate),
  br: promisify(zlib.brotliDecompress),
  zstd: promisify(zlib.zstdDecompress),
};

/** An error of the proxy's own: one sentence that tells what to do, without an address that holds a password. */
type Problem = { status: number; message: string };
const NO_ROUTE: Problem = {
  status: 404,
  message: "No such route: the proxy serves /health, /<id>/api, /<id>/download and /api/v1/, all else ask of Prowlarr.",
};
const CLIENT_LEFT: Problem = { status: 499, message: "the client left" };

function problemOf(error: unknown, { backendName, timeout }: Config): Problem {
  const { name, code = "unknown" } = error as NodeJS.ErrnoException;
  const badGateway = (message: string): Problem => ({ status: 502, message });
  if (error instanceof NoAnswer || name === "TimeoutError") {
    const message = `No answer from ${backendName} within ${timeout / 1000} s: see what keeps it, or raise BACKEND_TIMEOUT.`;
    return { status: 504, message };
  }
  if (error instanceof FeedTooLarge)
    return badGateway(
      `The feed from ${backendName} is larger than ${LARGEST_FEED >> 20} MiB: search for less at a time.`,
    );
  if (/REFUSED|NOTFOUND|UNREACH|TIMEDOUT|EAI_/.test(code))
    return badGateway(`${backendName} can't be reached: see whether it runs, and whether BACKEND_URL is its address.`);
  return badGateway(`The answer from ${backendName} broke off or was no HTTP (${code}): try again.`);
}

/** The answer to a failed request: where a client searches, an indexer's error document, which it shows; else JSON. */
function failure(route: Route | undefined, { status, message }: Problem): Response {
  if (route !== "search") return Response.json({ error: message }, { status });
  const description = Bun.escapeHTML(message).replaceAll("&#x27;", "&apos;");
  return new Response(`<?xml version="1.0" encoding="UTF-8"?>\n<error code="900" description="${description}"/>\n`, {
    status,
    headers: { "content-type": "application/rss+xml; charset=utf-8" },
  });
}

// ─── Command line ───────────────────────────────────────────────────────────────────────────────────────────────────

const HELP = `language-tag-proxy ${version}: writes an indexer's language attribute into release titles

  language-tag-proxy                  serve (see Configuration)
  language-tag-proxy --demo           serve a small sample feed, to try it without Prowlarr
  language-tag-proxy --title TITLE…   what a French release of that title becomes, and why; - reads titles from stdin
  language-tag-proxy --health         ask a running proxy whether it is well; exits with 0 or 1
  language-tag-proxy --help, --version

Configuration, from the environment:
  BACKEND_URL      Prowlarr's address, such as http://prowlarr:9696 (required)
  BACKEND_API_KEY  Prowlarr's key, used only to list its indexers at start
  PORT             where to listen (8080)
  BACKEND_TIMEOUT  seconds to wait for an answer to begin (120)
  LOG_LEVEL        debug (each title), info (each request) or warn (info)`;

/** Asks the backend for its indexers, and logs for each the URL to paste into Sonarr or Radarr. Never throws. */
async function announce(config: Config): Promise<void> {
  const { apiKey, backendName, log } = config;
  if (!apiKey)
    return log.info("BACKEND_API_KEY is not set, so the indexers are not listed here; searches work without it.");
  try {
    const [status, indexers] = await Promise.all(["system/status", "indexer"].map((what) => askAsProxy(config, what)));
    log.info(
      `${status.appName} ${status.version} at ${backendName} has these indexers; as URL in Sonarr and Radarr, use:`,
    );
    for (const { id, name } of indexers) log.info(`  http://${hostname()}:${config.port}/${id}/  → ${id}: ${name}`);
  } catch (error) {
    log.warn(
      `The indexers can't be listed: ${error instanceof UsageError ? error.message : problemOf(error, config).message}`,
    );
  }
}

async function askAsProxy({ backend, apiKey, timeout }: Config, what: string) {
  const response = await fetch(`${backend}/api/v1/${what}`, {
    headers: { "x-api-key": apiKey },
    redirect: "manual",
    proxy: false,
    signal: AbortSignal.timeout(timeout),
  });
  if (response.status === 401)
    throw new UsageError("the backend refuses BACKEND_API_KEY; copy it from Prowlarr → Settings → General.");
  if (!response.ok)
    throw new UsageError(
      `the backend answers with ${response.status}; see whether BACKEND_URL is Prowlarr's address, with its URL base.`,
    );
  return response.json() as any;
}

/** Title, languages; `--demo` serves them as a backend would. */
const DEMO: [title: string, languages: string[]][] = [
  ["Les.Revenants.S01E01.1080p.WEB.H264-DEMO", ["English", "French"]],
  ["Les.Revenants.S01E02.MULTi.1080p.WEB.H264-DEMO", ["French"]],
  ["Les.Revenants.S01E03.FRENCH.720p.HDTV.x264-DEMO", ["French"]],
  ["Les.Revenants.S01E04.1080p.WEB.H264-DEMO", ["English", "German"]],
];

/** A backend of our own with a handful of releases; returns its address. */
function serveDemoBackend(): string {
  const items = DEMO.map(([title, languages]) => {
    const attributes = languages.map((language) => `<newznab:attr name="language" value="${language}" />`).join("");
    return `    <item><title>${title}</title>${attributes}</item>\n`;
  });
  const feed = `<?xml version="1.0" encoding="UTF-8"?>
<rss version="2.0" xmlns:newznab="http://www.newznab.com/DTD/2010/feeds/attributes/">
  <channel>
${items.join("")}  </channel>
</rss>
`;
  const headers = { "content-type": "application/rss+xml" };
  return Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response(feed, { headers }) }).url.origin;
}

async function explainTitles(titles: string[]): Promise<void> {
  const all = titles.includes("-") ? (await Bun.stdin.text()).split(/\r?\n/).filter(Boolean) : titles;
  if (all.length === 0) throw new UsageError('--title needs a title, such as --title "Show.S01E01.1080p.WEB-GRP".');
  for (const title of all) {
    const decision = decide(title);
    console.log(`${apply(title, decision)}\n  ${explain(decision)}`);
  }
}

async function askHealth(port: number): Promise<boolean> {
  const signal = AbortSignal.timeout(5000);
  return fetch(`http://127.0.0.1:${port}/health`, { signal, proxy: false }).then(
    (response) => response.ok,
    () => false,
  );
}

/** Answers what is in flight, then ends the process. A second signal ends it at once. */
async function stop(server: Bun.Server<undefined>): Promise<void> {
  server.stop();
  while (server.pendingRequests > 0) await Bun.sleep(10);
  process.exit(0);
}

function start(env: Environment): Config {
  const config = readConfig(env);
  let server: Bun.Server<undefined>;
  try {
    server = serve(config);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    const problem = code === "EADDRINUSE" ? "is taken" : `can't be opened (${code})`;
    throw new UsageError(`Port ${config.port} ${problem}: set PORT to another one, or stop what uses it.`);
  }
  let isStopping = false;
  for (const signal of ["SIGTERM", "SIGINT"])
    process.on(signal, () => {
      // The second one ends it in any case: process 1 has no default that would.
      if (isStopping) process.exit(1);
      isStopping = true;
      stop(server);
    });
  config.log.info(`language-tag-proxy ${version} listens on port ${config.port}; backend: ${config.backendName}`);
  return config;
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      demo: { type: "boolean" },
      title: { type: "boolean" },
      health: { type: "boolean" },
      help: { type: "boolean", short: "h" },
      version: { type: "boolean" },
    },
  });
  if (values.help) return console.log(HELP);
  if (values.version) return console.log(version);
  if (values.title) return explainTitles(positionals);
  if (positionals.length > 0) throw new UsageError(`What is "${positionals[0]}"? See --help.`);
  if (values.health) process.exit((await askHealth(readPort(process.env))) ? 0 : 1);
  if (!values.demo) return announce(start(process.env));

  const { port } = start({ ...process.env, BACKEND_URL: serveDemoBackend() });
  console.log(`Try it in another terminal, and see MULTi.VFF in the first two titles; the other two stay as they are:

  curl "http://localhost:${port}/1/api?t=tvsearch&q=les+revenants"
`);
}

if (import.meta.main) {
  main().catch((error: Error) => {
    const isUsage =
      error instanceof UsageError || String((error as NodeJS.ErrnoException).code).startsWith("ERR_PARSE_ARGS");
    console.error(isUsage ? error.message : error);
    process.exit(1);
  });
}
