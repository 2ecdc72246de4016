#!/usr/bin/env bun
/**
 * Language-tag proxy: stands between Sonarr or Radarr and Prowlarr, and writes what an indexer says of a release's
 * language into its title, where the clients' custom formats see it:
 *
 *     <title>Show.S01E01.1080p.WEB-GRP</title> <newznab:attr name="language" value="French"/>
 *     <title>Show.S01E01.MULTi.VFF.1080p.WEB-GRP</title> …
 *
 * What else Prowlarr answers passes through as it is. Read on from top to bottom: configuration, rules, feed, proxy, command line.
 * To run it: `BACKEND_URL=http://prowlarr:9696 bun proxy.ts`, or `bun proxy.ts --help`.
 */
import { isUtf8 } from "node:buffer";
import { hostname } from "node:os";
import { XMLParser } from "fast-xml-parser";
import { version } from "./package.json";

/** A failure whose message a user reads: one plain sentence that says what to do, without keys and passwords. */
export class Problem extends Error {
  /** @param status of the HTTP answer, where a request failed */
  constructor(
    message: string,
    readonly status = 502,
  ) {
    super(message);
  }
}

// ─── Configuration: what the environment says ───────────────────────────────────────────────────────────────────────

export interface Config {
  /** Prowlarr's address with its URL base, without a slash at the end and without credentials: fit for a log. */
  backend: string;
  /** Prowlarr's URL base, such as `/prowlarr`, or empty. */
  urlBase: string;
  /** The `Authorization` header for the credentials in BACKEND_URL, or empty. */
  authorization: string;
  /** The proxy's own key; empty where there is none. */
  apiKey: string;
  port: number;
  /** Milliseconds that the backend may take until its answer begins. */
  timeout: number;
  log: Log;
}

/** One function a level; those below LOG_LEVEL are missing, so that `log.debug?.(…)` costs nothing. */
export type Log = { debug?: Print | undefined; info?: Print | undefined; warn: Print };
type Print = (line: string) => void;

type Environment = Record<string, string | undefined>;

/**
 * Reads the configuration from environment variables; an empty one counts as not set.
 *
 * @throws Problem that names the variable and what is expected
 */
export function readConfig(env: Environment): Config {
  const apiKey = env["BACKEND_API_KEY"]?.trim() ?? "";
  if (!/^[!-~]*$/.test(apiKey))
    throw new Problem("BACKEND_API_KEY must be the key from Prowlarr → Settings → General: letters and digits only.");
  return {
    ...readBackend(env["BACKEND_URL"]?.trim() ?? ""),
    apiKey,
    port: readPort(env),
    timeout: 1000 * readNumber(env, "BACKEND_TIMEOUT", 120, 86_400, "a number of seconds from 1 to 86400"),
    log: readLog(env),
  };
}

function readBackend(address: string): Pick<Config, "backend" | "urlBase" | "authorization"> {
  const url = URL.parse(address);
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash)
    throw new Problem(
      "BACKEND_URL must be Prowlarr's address, such as http://prowlarr:9696 or http://nas:9696/prowlarr.",
    );
  const urlBase = url.pathname.replace(/\/+$/, "");
  if (/\/\d+(?:\/api)?$/.test(urlBase))
    throw new Problem("BACKEND_URL ends in an indexer's number: set it to Prowlarr's own address.");
  return { backend: url.origin + urlBase, urlBase, authorization: readCredentials(url) };
}

function readCredentials({ username, password }: URL): string {
  if (!username && !password) return "";
  try {
    return `Basic ${Buffer.from(decodeURIComponent(`${username}:${password}`)).toString("base64")}`;
  } catch {
    throw new Problem("BACKEND_URL has a % in its user name or password that begins no character: write it as %25.");
  }
}

function readPort(env: Environment): number {
  return readNumber(env, "PORT", 8080, 65_535, "a port number from 1 to 65535");
}

function readNumber(env: Environment, name: string, fallback: number, most: number, expected: string): number {
  const value = env[name]?.trim() || String(fallback);
  if (!/^\d{1,5}$/.test(value) || Number(value) < 1 || Number(value) > most)
    throw new Problem(`${name} must be ${expected}, not ${JSON.stringify(value)}.`);
  return Number(value);
}

function readLog(env: Environment): Log {
  const value = env["LOG_LEVEL"]?.trim().toLowerCase() || "info";
  const least = ["debug", "info", "warn"].indexOf(value);
  if (least < 0) throw new Problem(`LOG_LEVEL must be debug, info or warn, not ${JSON.stringify(value)}.`);
  return { debug: least > 0 ? undefined : print, info: least > 1 ? undefined : print, warn: print };
}

/** Prints one line, whatever control characters a title, a search or an indexer's name holds. */
function print(line: string): void {
  console.log(line.replace(/[\p{Cc}\p{Zl}\p{Zp}]/gu, "\uFFFD"));
}

// ─── Rules: which values are French, and where in a release title the tag goes ──────────────────────────────────────
//
// Pure functions; the first part of proxy.test.ts is the table that they are held to. Their measure is what Sonarr's
// and Radarr's own parsers make of the result: they find French, and everything else (name, year, season, episodes,
// quality, revision, group, hash, edition) is as it was before.
//
// The words of a title stand in lists, and the patterns are built from them: to add a streaming service or a language,
// add a word. A hyphen in a word is any separator or none: WEB-DL is WEB-DL, WEB.DL, WEB DL and WEBDL.
//
// A title comes from a stranger, so a pattern reads it in one way only: a number is taken whole, and neighbouring parts
// never match the same characters. Otherwise one title of a hundred characters could stop the proxy.

/** What a French release gets: several languages, among them the French of France. */
const TAG = "MULTi.VFF";

const FRENCH_WORDS = "french francais francaise fr fra fre vf vff vfq vfi vf2 vof truefrench";
const SUBTITLE_WORDS = "sub subs subbed subtitle subtitles subtitled sous subfrench vost vosta vostfr stfr";

const FRENCH_TAGS = "VFF VOF VFQ VFI VF2 TRUEFRENCH FRENCH VF";
const OTHER_TAGS = `MULTi VO VOA VOST VOSTFR SUBFRENCH SUBFORCED FR FRE FRA ENG ENGLISH GERMAN ITALIAN ITA SPANISH ESP
  JAPANESE KOREAN AUDIO DUAL DUBBED DL WiTH AD COMPLETE INTEGRALE INTÉGRALE PROPER REPACK RERIP REAL iNTERNAL LIMITED
  UNRATED EXTENDED REMASTERED RESTORED UNCUT CUSTOM HYBRID IMAX HC HSBS 3D`;

const RESOLUTIONS = "4K 8K UHD FHD";
const SOURCES = `WEB-DL WEB-Rip WEB-Mux WEB-HD WEB-HDRip WEB-DLRip Blu-Ray MBluRay BD BD-Rip BD-Mux BD-Remux BD-Light
  BD-Full BD25 BD50 BR-Rip UHD-BD UHD-BDRip UHD-Remux Remux HD-DVD HD-Light 4K-Light mHD HD-TV SD-TV PDTV DSR TV-Rip
  VOD-Rip HD-Rip HD-CAM DVD DVD5 DVD9 DVDR DVD-Rip DVD-Scr`;
const CODECS = "x264 x265 x266 H-264 H-265 H-266 HEVC AVC AV1 VP9 VC-1 XviD DivX MPEG-2 MPEG-4";
const PICTURES = "HDR HDR10 HDR10+ HDR10Plus DV DoVi SDR 8-bit 10-bit Hi10 Hi10P";
const SOUNDS = "DTS DTS-HD DTS-X TrueHD Atmos AC3 EAC3 DD DDP DD+ AAC FLAC Opus PCM LPCM MP3";
/** Streaming services count only next to a WEB: many are words that a name may hold as well. */
const SERVICES = `Amazon AMZN ADN ATV ATVP CANAL+ CR CRAV DP DSNP HBO HMAX HULU iP iT MAX MYCANAL NF Netflix PCOK PMTP
  SALTO STAN TF1`;

const SEASON_WORDS = "Saison Season Stagione Temporada";
const EPISODE_WORDS = "E EP Épisode Episode Episodio";
const PART_WORDS = "Part Partie Vol Volume";
const EXTENSIONS = "mkv mp4 avi ts m2ts wmv mpg iso nzb torrent srt ass sub rar zip";

const words = (list: string) => list.split(/\s+/);
/** A pattern for any one word of the lists. */
const anyOf = (...lists: string[]) =>
  `(?:${lists.flatMap(words).join("|").replaceAll("+", "\\+").replaceAll("-", "[ ._-]?")})`;
const pattern = (source: string, flags = "") => new RegExp(source, `iu${flags}`);

/** The lookahead is for speed: without it the alternatives that follow are tried between any two brackets. */
const START = String.raw`(?<![\p{L}\p{N}])(?=[\p{L}\p{N}])`;
const END = String.raw`(?![\p{L}\p{N}])`;
const GAP = "[ ._-]";

const EXTENSION = String.raw`(?:\.${anyOf(EXTENSIONS)})?$`;
const GROUP = String.raw`(?<=-)(?=\d*\p{L})[\p{L}\p{N}]+${EXTENSION}`;

// Quality indicators: what a title says of picture and sound, where that isn't the group's name.
const FORMATS = anyOf(RESOLUTIONS, CODECS, PICTURES);
const FORMAT = String.raw`(?:\d{3,4}(?:[pi]|x\d{3,4})|${FORMATS}|${anyOf(SOUNDS)}(?:\d[ ._]\d)?)`;
/** A WEB that stands alone is a source before a format, a tag, the group, a bracket or the end; not so in "Web of Lies". */
const WEB = String.raw`WEB(?=${GAP}(?:${FORMAT}|${anyOf(FRENCH_TAGS, OTHER_TAGS)})${END}|-|[)\]]|[ .]*$)`;
const QUALITY = `(?:${FORMAT}|${anyOf(SOURCES)}|${anyOf(SERVICES)}(?=${GAP}WEB)|${WEB})${END}`;
const QUALITY_INDICATOR = pattern(`${START}(?!${GROUP})${QUALITY}`, "g");
const QUALITY_IN_BRACKETS = pattern(String.raw`(?<=[^\])][ ._]?)[([](?=[\p{L}\p{N}])${QUALITY}`);

// Markers: what ends the name. A season or an episode, else a date or a year, with the numbers that go on from there (-E03,
// 06-08 of 24, Part 2, 05-26), for a tag among them loses episodes.
const YEAR = String.raw`(?:18[89]\d|19\d\d|20\d\d)`;
const NUMBER = String.raw`\d{1,5}(?!\d)`;
const SEASON = String.raw`(?:S|${anyOf(SEASON_WORDS)}${GAP}?)\d{1,4}(?!\d)`;
const EPISODE = String.raw`${anyOf(EPISODE_WORDS)}${GAP}?${NUMBER}`;
const NUMBER_LABEL = String.raw`(?:S|EP?|\d{0,2}x(?=\d\d?(?!\d))|of[ ._]|${anyOf(PART_WORDS)}${GAP}?)`;
const NUMBER_SEPARATOR = String.raw`[ ._~–(&+-]`;
const NEXT_NUMBER = String.raw`${NUMBER_SEPARATOR}{0,3}(?:${NUMBER_LABEL}(?:${NUMBER}|XX)|(?<=${NUMBER_SEPARATOR})\d{1,4}${END})`;
const MORE_NUMBERS = String.raw`(?:(?:v\d|[a-h]${END})?${NEXT_NUMBER}){0,16}(?:v\d|[a-h])?(?:\.5)?${END}`;

/** The first of these that is found ends the name, wherever it stands. */
const SEASON_MARKERS = [
  // S01E01, S01.E01-E03, Season 1 - Episode 01, (S05E06-08 of 24). Sonarr cuts off all up to `S01E01-` to find the group.
  String.raw`${START}${SEASON}${GAP}{0,3}(?:${EPISODE}|x\d\d?(?!\d))${MORE_NUMBERS}(?:(?<=S\d{1,4}E\d{1,5})-)?`,
  // 1x01_02, 2010x15 - 2010x16
  String.raw`${START}(?:\d\d?|${YEAR})x\d{1,3}(?!\d)${MORE_NUMBERS}`,
  // 2023-05-26, 2015.0308
  String.raw`${START}${YEAR}${GAP}?(?:0[1-9]|1[0-2])${GAP}?(?:0[1-9]|[12]\d|3[01])(?!\d)${MORE_NUMBERS}`,
  // [HDTV 720p][Cap.201_204], the Spanish way
  `${START}Cap${GAP}?${NUMBER}${MORE_NUMBERS}`,
  // S01, S01-S09, Saison 1
  `${START}${SEASON}${MORE_NUMBERS}`,
].map((source) => pattern(source));
/** The first of these ends it otherwise, if no quality in brackets stands before. */
const OTHER_MARKERS = [
  // E07-E08, Episode 99-100, Ep.01; but not the hash [E34E548F]
  String.raw`${START}(?![\dA-F]{8}[\])])${EPISODE}${MORE_NUMBERS}`,
  // 2019, 2049.2017, 1984 (2020), 1979-2015; a title that begins with a year begins with its name.
  String.raw`(?<=[^\p{L}\p{N}])${YEAR}(?!\d)(?:[ ._([–-]{1,3}${YEAR}(?!\d))*${END}`,
].map((source) => pattern(source));
/** ` - 12 `, `_-_12v2_`, `Title-01[`: an anime episode for Sonarr, a part of the name for Radarr. */
const ABSOLUTE_NUMBER = pattern(String.raw`(?:[ ._]-[ ._]|(?<=\w)-)\d{2,4}(?:\.5)?(?:v\d)?${END}`);

/** Sonarr sees no language in a tag right before a word that begins with SUB: there it speaks of subtitles. */
const FRENCH_TAG = pattern(`${START}${anyOf(FRENCH_TAGS)}${END}(?!${GAP}{0,3}sub)`, "g");
const MULTI_TAG = pattern(`${START}MULTi${END}(?!${GAP}{0,3}(?:sub|${anyOf(FRENCH_TAGS)}${END}))`, "g");
/** What follows a tag: another tag, a quality indicator, the group, the end. */
const AFTER_A_TAG = pattern(
  String.raw`[ ._\-()[\]{}]{0,5}(?:(?:${anyOf(FRENCH_TAGS, OTHER_TAGS)}|${QUALITY})${END}|${GROUP}|${EXTENSION})`,
  "y",
);
/** Past the marker's closing bracket, one separator (`_` must not touch the tag) and words that begin with SUB. */
const AFTER_A_MARKER = pattern(String.raw`[)\]}】]?(?:(?:${GAP}*sub[\p{L}\p{N}]*${END})+[ ._]?|[ ._])?`, "y");
/** Group, hash and extension at the end of a title. */
const TAIL = pattern(String.raw`(?:-(?=\d*\p{L})[\p{L}\p{N}]+)?(?:[ ._]?[([][^()[\]]*[)\]]){0,5}${EXTENSION}`);

/** Characters. A file name has at most 255 bytes, so what is much longer is no release's title. */
const LONGEST_TITLE = 300;

/** What happens to a title: `insert` goes in at the index `at`; where it is empty, the title stays. */
export interface Decision {
  at: number;
  insert: string;
  /** Why, in a sentence for the user. */
  reason: string;
}

const FRENCH = pattern(`${START}${anyOf(FRENCH_WORDS)}${END}`);
const SUBTITLES = pattern(`${START}${anyOf(SUBTITLE_WORDS)}${END}`);

/**
 * Whether the value of a `language` attribute says that there is French audio: `French`, `English, Français`, `fr-FR`,
 * `VFF`. Letter case and accents don't matter. What a value says of subtitles (`French subtitles`, `VOSTFR`) doesn't
 * count, and neither do words that only begin alike (`Frisian`).
 */
export function isFrench(value: string): boolean {
  const plain = value.normalize("NFD").replace(/\p{M}/gu, "");
  return plain.split(/[,;/|&+]/).some((language) => FRENCH.test(language) && !SUBTITLES.test(language));
}

/**
 * Decides what a release title of French audio becomes.
 *
 * @param title without white space around it
 */
export function decide(title: string): Decision {
  const stays = (reason: string): Decision => ({ at: 0, insert: "", reason });
  if (title.length > LONGEST_TITLE) return stays(`longer than ${LONGEST_TITLE} characters: not a release title`);

  const name = findNameEnd(title);
  const quality = findQuality(title, name);

  // In a title that is all in capitals FRENCH may be a word of the name (THE.FRENCH.DISPATCH).
  const inCapitals = !/\p{Ll}/u.test(title.slice(0, quality?.index));
  const isWrittenAsTag = (word: string) =>
    word !== "VF" && word === word.toUpperCase() && !(inCapitals && word === "FRENCH");
  const french = findTag(FRENCH_TAG, title, name.end, isWrittenAsTag);
  if (french) return stays(`already French: "${french[0]}"`);

  const multi = findTag(MULTI_TAG, title, name.end, (word) => word === "MULTi" || word === "MULTI");
  if (multi) {
    const at = multi.index + multi[0].length;
    return { at, insert: title[at] === "_" ? ".VFF." : ".VFF", reason: `${multi[0]} found: ".VFF" added` };
  }
  const nameEnd = name.end ? `name ends after "${name.marker}"` : "no year or episode found";
  if (quality)
    return { ...beforeQuality(title, quality.index, name), reason: `${nameEnd}; tag goes before "${quality[0]}"` };
  if (name.end)
    return { ...afterMarker(title, name.end), reason: `${nameEnd}; no quality follows, so the tag goes right there` };
  return { ...beforeTail(title), reason: "no year, episode or quality found; tag goes before group and extension" };
}

/** The title that a decision leads to. */
export function apply(title: string, { at, insert }: Decision): string {
  return title.slice(0, at) + insert + title.slice(at);
}

/** Where a name ends (0 if nothing ends it) and by which marker. An absolute number is not certain: it may belong to the name. */
type NameEnd = { end: number; marker: string; isCertain: boolean };

function findNameEnd(title: string): NameEnd {
  const beforeBrackets = title.slice(0, QUALITY_IN_BRACKETS.exec(title)?.index);
  const marker = firstMatch(SEASON_MARKERS, title) ?? firstMatch(OTHER_MARKERS, beforeBrackets);
  const match = marker ?? ABSOLUTE_NUMBER.exec(title);
  if (!match) return { end: 0, marker: "", isCertain: false };
  return { end: match.index + match[0].length, marker: match[0], isCertain: marker !== undefined };
}

function firstMatch(patterns: RegExp[], text: string): RegExpExecArray | undefined {
  for (const pattern of patterns) {
    const match = pattern.exec(text);
    if (match) return match;
  }
  return undefined;
}

/** The first quality indicator after the name; one at the start of a title, or in a group's brackets there, is none. */
function findQuality(title: string, { end, isCertain }: NameEnd): RegExpExecArray | null {
  QUALITY_INDICATOR.lastIndex = end || /^\[[^\]]*\]|^/.exec(title)![0].length || 1;
  const quality = QUALITY_INDICATOR.exec(title);
  // Sonarr knows [WEB] by its two brackets, and inside of brackets is where the tag has to go if the end isn't certain.
  const isLoneWeb = quality && /^WEB[)\]]/i.test(title.slice(quality.index));
  return isLoneWeb && !isCertain ? QUALITY_INDICATOR.exec(title) : quality;
}

/** The first tag that is written as only tags are, or that stands where tags stand: after the name, before their like. */
function findTag(tags: RegExp, title: string, nameEnd: number, isWrittenAsTag: (word: string) => boolean) {
  return title.matchAll(tags).find(({ 0: word, index }) => {
    if (isWrittenAsTag(word)) return true;
    AFTER_A_TAG.lastIndex = index + word.length;
    return index >= nameEnd && (word === "VF" || AFTER_A_TAG.test(title));
  });
}

type Insertion = Pick<Decision, "at" | "insert">;

/** The tag before a quality indicator, and before the bracket or the hyphen that the indicator stands behind. */
function beforeQuality(title: string, at: number, name: NameEnd): Insertion {
  // Where the name's end can't be told, Radarr reads all before a bracket as the name. Sonarr knows `[WEB ` as a start.
  if (!name.isCertain && /[([]/.test(title[at - 1] ?? ""))
    return tagBeside(title, /^WEB[ .]/i.test(title.slice(at)) ? at + 4 : at);
  while (at > name.end && "([{【".includes(title[at - 1]!)) at--;
  if (at - 1 === name.end && title[at - 1] === "-") return { at: at - 1, insert: `.${TAG}.` };
  return tagBeside(title, at);
}

function afterMarker(title: string, nameEnd: number): Insertion {
  AFTER_A_MARKER.lastIndex = nameEnd;
  return tagBeside(title, nameEnd + AFTER_A_MARKER.exec(title)![0].length);
}

function beforeTail(title: string): Insertion {
  return tagBeside(title, title.search(TAIL));
}

/**
 * The tag with its separators for the index `at`: the title's own, a dot or a space. Never an underscore: to the `\b`
 * of the clients' custom formats that is a letter, so `VFF_` is not VFF.
 */
function tagBeside(title: string, at: number): Insertion {
  const before = title[at - 1] ?? "";
  const after = title[at] ?? "";
  const separator = [before, after].includes(" ") || (!/[._]/.test(before) && title.includes(" ")) ? " " : ".";
  const left = /[ ._\-([{【]/.test(before) ? "" : separator;
  const right = after === "" || (left && /[ .\-]/.test(after)) ? "" : separator;
  return { at, insert: left + TAG + right };
}

// ─── Feed: a search response with its French titles tagged ──────────────────────────────────────────────────────────
//
// The feed is spliced, never printed anew: every byte but the inserted tags is the backend's own. It is read as Latin-1,
// one character a byte, so that an index into the text is an offset in the feed, whatever its encoding. Whether the feed
// is well-formed is the client's to judge. No part of the text is searched more than a few times, so that no feed, however
// hostile, takes more than linear time.

/** A comment, a CDATA section or a processing instruction; one that has no end reaches to the feed's. */
const SECTION = /<!--[^]*?(?:-->|$)|<!\[CDATA\[[^]*?(?:\]\]>|$)|<\?(?!xml\s)[^]*?(?:\?>|$)/g;
const ITEM = /<item(?:\s[^<>]*)?(?<!\/)>/g;
const ATTRIBUTES = `[^<>"']*(?:(?:"[^"<]*"|'[^'<]*')[^<>"']*){0,100}`;
const XML_TAG = new RegExp(String.raw`<(\/?)([^\s<>/"'!?]+)(?=[\s/>])${ATTRIBUTES}>`, "g");

const INITIALS = FRENCH_WORDS.replace(/\B\w| /g, "");
/**
 * Where an attribute's value begins with `language`. In most feeds the language is English: the lookahead passes by one
 * of whose letters none begins a French word, and saves a tenth of the time.
 */
const LANGUAGE = pattern(String.raw`=\s*["']\s*language(?!" value="[^"<&${INITIALS}]*")`, "g");
const LANGUAGE_TAG = new RegExp(String.raw`^<(?:[^\s<>/"']*:)?attr\s(${ATTRIBUTES}?)\/?>`);
const LONGEST_LANGUAGE_TAG = 1000;
const parser = new XMLParser({ ignoreAttributes: false, attributeNamePrefix: "", htmlEntities: true });

/** What a title is written with: CDATA sections, references, characters. */
const TITLE_PIECE = /<!\[CDATA\[([^]*?)\]\]>|&[^\s&;<>]+;|[^]/g;
const ENTITIES: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'" };

/** A search response, tagged: the backend's bytes in pieces, with the tags between them. */
export interface TaggedFeed {
  pieces: (Uint8Array | string)[];
  items: number;
  french: FrenchRelease[];
}

/** A release of French audio: its title as a client reads it, and what happens to it. */
export interface FrenchRelease {
  title: string;
  decision: Decision;
  /** Behind how many bytes of the title, as the feed writes it, the tag goes. */
  offset: number;
}

/** From the index `start` up to, but not including, the index `end`. */
type Span = { start: number; end: number };

/**
 * Tags the French releases of a search response: the items that have a `language` attribute which says French.
 *
 * @param feed the response's bytes, uncompressed, in any encoding that contains ASCII
 */
export function tagFeed(feed: Uint8Array): TaggedFeed {
  const xml = Buffer.from(feed.buffer, feed.byteOffset, feed.byteLength).toString("latin1");
  // Most searches find no French release: such a feed needs no closer look.
  const hasFrench = findFrench(xml, 0) < Infinity;
  const markup = hasFrench ? withoutSections(xml) : xml;
  const tagged: TaggedFeed = { pieces: [], items: 0, french: [] };
  let copied = 0;
  let nextFrench = hasFrench ? findFrench(markup, 0) : Infinity;
  for (const item of itemsOf(markup)) {
    tagged.items++;
    if (nextFrench < item.start) nextFrench = findFrench(markup, item.start);
    if (nextFrench > item.end) continue;
    const title = findTitle(markup, item);
    const release = title && readTitle(xml.slice(title.start, title.end));
    if (!title || !release) continue;
    tagged.french.push(release);
    if (!release.decision.insert) continue;
    const at = title.start + release.offset;
    tagged.pieces.push(feed.subarray(copied, at), release.decision.insert);
    copied = at;
  }
  tagged.pieces.push(feed.subarray(copied));
  return tagged;
}

/** The feed's text with its sections blanked out, in place because there may be millions: what stands in one is no markup. */
function withoutSections(xml: string): string {
  let blanked: Buffer | undefined;
  for (const { 0: section, index } of xml.matchAll(SECTION)) {
    blanked ??= Buffer.from(xml, "latin1");
    blanked.fill(" ", index, index + section.length);
  }
  return blanked?.toString("latin1") ?? xml;
}

/** The content of each item that has an end. */
function* itemsOf(markup: string): Generator<Span> {
  for (ITEM.lastIndex = 0; ITEM.test(markup);) {
    const start = ITEM.lastIndex;
    const end = markup.indexOf("</item>", start);
    if (end < 0) return;
    yield { start, end };
    ITEM.lastIndex = end;
  }
}

/** Where the next tag stands that says French, or Infinity. */
function findFrench(markup: string, from: number): number {
  for (LANGUAGE.lastIndex = from; LANGUAGE.test(markup);) {
    const start = markup.lastIndexOf("<", LANGUAGE.lastIndex);
    const next = markup.indexOf("<", LANGUAGE.lastIndex);
    if (saysFrench(markup.slice(start, next))) return start;
    if (next < 0) break;
    LANGUAGE.lastIndex = next;
  }
  return Infinity;
}

/** The content of the item's own title: the first `<title>` that is not within another element, if it is text alone. */
function findTitle(markup: string, item: Span): Span | undefined {
  let depth = 0;
  XML_TAG.lastIndex = item.start;
  for (let tag; (tag = XML_TAG.exec(markup)) && tag.index < item.end;) {
    const [text, slash, name] = tag;
    if (slash) depth--;
    else if (text.endsWith("/>")) continue;
    else if (name === "title" && depth === 0) {
      const [start, end] = [XML_TAG.lastIndex, markup.indexOf("<", XML_TAG.lastIndex)];
      return markup.startsWith("</title", end) ? { start, end } : undefined;
    } else depth++;
  }
  return undefined;
}

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
    if (text.length <= 1000) answers.set(copy, given);
    return given;
  };
}

/** Whether the text from one `<` to the next begins with an `attr` element for a language that is French. */
const saysFrench = remembering((text) => {
  const attributes = text.length <= LONGEST_LANGUAGE_TAG && LANGUAGE_TAG.exec(readable(text))?.[1];
  if (!attributes || !/\bname\s*=/.test(attributes)) return false;
  try {
    const { name, value } = parser.parse(`<attr ${attributes}/>`).attr as Record<string, string>;
    return name?.toLowerCase() === "language" && isFrench(value ?? "");
  } catch {
    // fast-xml-parser refuses attributes such as __proto__.
    return false;
  }
});

/** Decides on a title as it is written in the feed; nothing where it is empty or holds elements. */
const readTitle = remembering((written): FrenchRelease | undefined => {
  if (written.length > 10 * LONGEST_TITLE) return undefined;
  const raw = readable(written);
  let text = "";
  // Where in `raw` each character of the text ends.
  const ends = [0];
  for (const { 0: piece, 1: data, index } of raw.matchAll(TITLE_PIECE)) {
    if (piece === "<") return undefined;
    const characters = data ?? readReference(piece);
    for (let n = 1; n <= characters.length; n++)
      ends.push(index + (data === undefined ? piece.length : "<![CDATA[".length + n));
    text += characters;
  }
  const title = text.trim();
  if (!title) return undefined;
  const decision = decide(title);
  const offset = ends[text.length - text.trimStart().length + decision.at]!;
  return { title, decision, offset: raw === written ? offset : Buffer.byteLength(raw.slice(0, offset)) };
});

/** What was read as Latin-1, one character a byte, as UTF-8 where it is that; Latin-1 and broken UTF-8 stay as read. */
function readable(text: string): string {
  if (/^[\0-\x7F]*$/.test(text)) return text;
  const bytes = Buffer.from(text, "latin1");
  return isUtf8(bytes) ? bytes.toString() : text;
}

/** The character that a reference such as `&amp;`, `&#233;` or `&#xE9;` stands for; an unknown one stays as it is. */
function readReference(reference: string): string {
  const code = Number(/^&#(x?[\da-f]+);$/i.exec(reference)?.[1]!.replace(/^x/i, "0x"));
  return code <= 0x10ffff ? String.fromCodePoint(code) : (ENTITIES[reference] ?? reference);
}

// ─── Proxy: a request comes in, goes to the backend, and its answer goes back ───────────────────────────────────────

const SEARCH = /^\/\d{1,9}\/api$/;
/** Nothing else reaches the backend, so that its web page and its key stay private; nor does `/api/v1/..%2f..%2f`. */
const OTHER_ROUTES = /^\/(?:\d{1,9}\/download$|api\/v1\/(?!.*%(?:2[EeFf]|5[Cc]|25)).)/;
/** What a client may search by in place of a text. */
const SEARCH_IDS = words("tvdbid imdbid tmdbid tvmazeid rid traktid doubanid year");
/** The part of a path that holds no key: words and numbers. */
const PLAIN_SEGMENTS = /^(?:\/(?:[a-z]{1,20}|v1|\d{1,9})(?![^/]))*/i;

const HOP_BY_HOP = words(
  "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade expect",
);
/** Tells this proxy from any other in a `Via` header (RFC 9110, §7.6.3). */
const VIA = `language-tag-proxy-${crypto.randomUUID()}`;

/** A redirect is the client's to follow. The backend is on the home network: HTTP_PROXY is not meant for it. */
const DIRECT = { redirect: "manual", proxy: false } as const;

/**
 * Bun collects garbage when it outweighs what lives, which is next to nothing here: after every 14 searches. This weight
 * lets it wait for 40, and takes no memory because nobody touches it. What is left of a larger feed goes at once.
 */
const BALLAST = new ArrayBuffer(6 * 1024 * 1024);
/** Bytes. 100 releases are 160 KiB, and 5,000 are 8 MiB. */
const LARGEST_FEED = 32 * 1024 * 1024;

const NO_ROUTE = new Problem(
  "No such route: the proxy serves /health, /<id>/api, /<id>/download and /api/v1/; ask Prowlarr itself for anything else.",
  404,
);
const LOOP = new Problem("BACKEND_URL is the proxy's own address: set it to Prowlarr's.", 508);
const TOO_LARGE = new Problem(`The feed is larger than ${LARGEST_FEED >> 20} MiB: search for less at a time.`);
const CLIENT_LEFT = new Problem("the client left", 499);

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
    // A port that is taken is an error, not a port that two proxies share.
    reusePort: false,
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    fetch: (request, server) => handle(request, server, config),
    // Bun's own page and print would show the URL, and with it the key.
    error: () =>
      errorResponse(new Problem("The proxy failed at this request: please report what was asked.", 500), false),
  });
}

async function handle(request: Request, server: Bun.Server<undefined>, config: Config): Promise<Response> {
  const started = performance.now();
  const { path, query } = targetOf(request, config);
  if (path === "/health") return Response.json({ status: "ok" });

  const isSearch = SEARCH.test(path);
  const line = () => describeRequest(request.method, path, isSearch ? query : "");
  const log = (outcome: string, level: keyof Log = "info") =>
    config.log[level]?.(`${line()} → ${outcome}, ${Math.round(performance.now() - started)} ms`);
  try {
    if (!isSearch && !OTHER_ROUTES.test(path)) throw NO_ROUTE;
    const response = await forward(request, server, config, path + query, isSearch);
    if (isSearch && isFeed(request, response)) return await answerSearch(response, config.log, log);
    log(String(response.status));
    const onBreak = () => request.signal.aborted || config.log.warn(`${line()}: the backend broke off its answer`);
    return new Response(response.body && relay(response.body, onBreak), response);
  } catch (error) {
    const problem = request.signal.aborted ? CLIENT_LEFT : problemOf(error, config);
    log(`${problem.status}: ${problem.message.replace(/\.$/, "")}`, problem.status >= 500 ? "warn" : "info");
    return errorResponse(problem, isSearch);
  }
}

/** The path of a request, without dot segments and without the backend's URL base, and its query with the question mark. */
function targetOf(request: Request, { urlBase }: Config): { path: string; query: string } {
  // Bun puts the client's Host before the path, and that may be one which no URL can hold (nas.1), or nothing.
  const { pathname, href } = new URL(request.url.replace(/^(?:https?:\/\/[^/]*)?/, "http://proxy"));
  // The backend's own links begin with its URL base, which `config.backend` holds already.
  const path = pathname.startsWith(`${urlBase}/`) ? pathname.slice(urlBase.length) : pathname;
  // `search` would drop a lone question mark.
  return { path, query: /\?.*|$/.exec(href)![0] };
}

/** A request in a log's words: its route, and what it searches for. Nothing else is shown, for it may hold a key. */
function describeRequest(method: string, path: string, query: string): string {
  const shown = PLAIN_SEGMENTS.exec(path)![0];
  const route = `${method} ${shown}${shown === path ? "" : "/…"}`;
  return query ? `${route} ${describeSearch(new URLSearchParams(query))}` : route;
}

/** `tvsearch "les revenants" S01E02`, `movie imdbid=tt0111161`, `tvsearch latest` for an RSS sync, `caps`. */
function describeSearch(parameters: URLSearchParams): string {
  const value = (name: string, form: RegExp) => form.exec(parameters.get(name) ?? "")?.[0] ?? "";
  const type = value("t", /^(?:caps|search|tvsearch|movie|music|book)$/);
  // A client that encodes its query twice has its key in the text.
  const text = value("q", /^(?:(?!api_?key).){1,200}/is);
  const ids = SEARCH_IDS.map((name) => {
    const id = value(name, /^(?:tt)?\d{1,10}$/);
    return id && `${name}=${id}`;
  });
  const season = value("season", /^\d{1,4}$/);
  const episode = value("ep", /^\d{1,4}$|^\d\d\/\d\d$/);
  const episodes = (season && `S${season.padStart(2, "0")}`) + (episode && `E${episode.padStart(2, "0")}`);
  const what = [text && JSON.stringify(text), ...ids, episodes].filter(Boolean).join(" ");
  return [type, what || (type === "caps" ? "" : "latest")].filter(Boolean).join(" ");
}

/** The request as it came, sent to the backend. */
async function forward(
  request: Request,
  server: Bun.Server<undefined>,
  config: Config,
  target: string,
  isSearch: boolean,
): Promise<Response> {
  if (request.headers.get("via")?.includes(VIA)) throw LOOP;
  const slow = new AbortController();
  const timer = setTimeout(() => slow.abort(new DOMException("", "TimeoutError")), config.timeout);
  try {
    const response = await fetch(config.backend + target, {
      method: request.method,
      headers: forwardedHeaders(request, server, config),
      body: request.body,
      signal: AbortSignal.any([request.signal, slow.signal]),
      ...DIRECT,
      decompress: isSearch,
      // An answer that has begun may take as long as its client waits: Prowlarr streams whatever the indexer sends.
      timeout: false,
      // A connection that the backend has closed meanwhile: Bun asks once more on a new one, but only what has no body.
      keepalive: request.method === "GET" || request.method === "HEAD",
    });
    removeHopByHop(response.headers);
    // These `fetch` undoes itself; of any other it knows nothing.
    if (isSearch && /^(?:(?:x-)?gzip|deflate|br|zstd)$/i.test(response.headers.get("content-encoding") ?? ""))
      for (const name of ["content-encoding", "content-length"]) response.headers.delete(name);
    return response;
  } finally {
    clearTimeout(timer);
  }
}

function forwardedHeaders(request: Request, server: Bun.Server<undefined>, { authorization }: Config): Headers {
  const headers = new Headers(request.headers);
  const host = headers.get("host");
  const client = server.requestIP(request)?.address.replace(/^::ffff:/, "");
  removeHopByHop(headers);
  headers.delete("host");
  headers.append("via", `1.1 ${VIA}`);
  // Prowlarr builds the feed's download links from these, so that a download comes back through the proxy.
  if (client) headers.append("x-forwarded-for", client);
  if (host && !headers.has("x-forwarded-host")) headers.set("x-forwarded-host", host);
  if (!headers.has("x-forwarded-proto")) headers.set("x-forwarded-proto", "http");
  if (authorization && !headers.has("authorization")) headers.set("authorization", authorization);
  return headers;
}

/**
 * Removes hop-by-hop headers (RFC 9110, §7.6.1), and those that `Connection` names. Transfer-Encoding is Bun's own: it
 * sets it as each side needs it, and reads from it that the answer to a HEAD has no Content-Length.
 */
function removeHopByHop(headers: Headers): void {
  const named = headers.get("connection")?.match(/[\w!#$%&'*+.^`|~-]+/g) ?? [];
  for (const name of [...HOP_BY_HOP, ...named]) headers.delete(name);
}

/** A body as it comes, which reports when it breaks off: Bun would print the error, and with it the URL and its key. */
async function* relay(body: ReadableStream<Uint8Array>, onBreak: () => unknown): AsyncGenerator<Uint8Array> {
  try {
    yield* body;
  } catch (error) {
    onBreak();
    throw error;
  }
}

function isFeed(request: Request, response: Response): boolean {
  const type = response.headers.get("content-type") ?? "";
  return response.status === 200 && request.method !== "HEAD" && /^[^;]*[/+]xml\b/i.test(type);
}

/** A search response, read to its end and tagged. */
async function answerSearch(response: Response, { debug }: Log, log: (outcome: string) => void): Promise<Response> {
  const feed = await readWhole(response);
  const { pieces, items, french } = tagFeed(new Uint8Array(feed));
  const tagged = french.filter(({ decision }) => decision.insert).length;
  log(`200, ${items} items, ${tagged} tagged`);
  for (const { title, decision } of french)
    if (decision.insert) debug?.(`  ${title} → ${apply(title, decision)} (${decision.reason})`);
    else debug?.(`  ${title} stays: ${decision.reason}`);

  // A direct stream is sent in one piece, where Bun 1.4.5 sends any other body of an async handler in many small ones.
  const body = new ReadableStream({
    type: "direct",
    pull(controller) {
      for (const piece of pieces) controller.write(piece);
      controller.end();
      const isLarge = feed.byteLength > BALLAST.byteLength;
      // Nobody else has the feed's buffer: its memory is free for the next search.
      feed.transfer(0);
      if (isLarge) Bun.gc(false);
    },
  });
  response.headers.delete("content-length");
  return new Response(body, { headers: response.headers });
}

/** The whole body of a search response, in a buffer that is nobody else's. */
async function readWhole(response: Response): Promise<ArrayBuffer> {
  const length = response.headers.get("content-length");
  if (Number(length) > LARGEST_FEED) {
    await response.body?.cancel();
    throw TOO_LARGE;
  }
  // What is packed small may be large: a length tells nothing of it.
  if (length && !response.headers.has("content-encoding")) return await response.arrayBuffer();
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of response.body ?? []) {
    size += chunk.length;
    if (size > LARGEST_FEED) throw TOO_LARGE;
    chunks.push(chunk);
  }
  return Bun.concatArrayBuffers(chunks);
}

/** What a failed request to the backend means for the user. */
function problemOf(error: unknown, { backend, timeout }: Config): Problem {
  if (error instanceof Problem) return error;
  const { name, code = "unknown" } = error as NodeJS.ErrnoException;
  if (name === "TimeoutError")
    return new Problem(
      `${backend} gave no answer within ${timeout / 1000} s: see its log, or raise BACKEND_TIMEOUT.`,
      504,
    );
  if (/REFUSED|NOTFOUND|UNREACH|TIMEDOUT|EAI_/.test(code))
    return new Problem(`${backend} can't be reached: see whether it runs, and whether BACKEND_URL is its address.`);
  if (/CERT|SIGNATURE/.test(code))
    return new Problem(
      `The certificate of ${backend} is not trusted (${code}): use the host name in the certificate, or name its authority's file in NODE_EXTRA_CA_CERTS.`,
    );
  return new Problem(`The answer from ${backend} broke off or was no HTTP (${code}): try again.`);
}

/** The answer to a failed request: where a client searches, an indexer's error document, which it shows; else JSON. */
function errorResponse({ status, message }: Problem, isSearch: boolean): Response {
  if (!isSearch) return Response.json({ error: message }, { status });
  const description = Bun.escapeHTML(message).replaceAll("&#x27;", "&apos;");
  return new Response(`<?xml version="1.0" encoding="UTF-8"?>\n<error code="900" description="${description}"/>\n`, {
    status,
    headers: { "content-type": "application/rss+xml; charset=utf-8" },
  });
}

// ─── Command line ───────────────────────────────────────────────────────────────────────────────────────────────────

const HELP = `language-tag-proxy ${version}: writes an indexer's language attribute into release titles

  language-tag-proxy                  serve (see Configuration)
  language-tag-proxy --check          check the whole way from Sonarr and Radarr to each indexer, and say what to mend
  language-tag-proxy --title TITLE…   show what a French release of that title becomes, and why; - reads titles from stdin
  language-tag-proxy --demo           serve a small sample feed, to try the proxy without Prowlarr
  language-tag-proxy --health         ask a running proxy whether it answers; exits with 0 or 1
  language-tag-proxy --help, --version

Configuration, from the environment:
  BACKEND_URL      Prowlarr's address, such as http://prowlarr:9696 (required)
  BACKEND_API_KEY  Prowlarr's key, used only by --check and to list the indexers at start
  PORT             where to listen (8080)
  BACKEND_TIMEOUT  seconds to wait for an answer to begin (120)
  LOG_LEVEL        debug (each French title), info (each request) or warn (only what went wrong); info if not set`;

/** Found in a release that has a `language` attribute, whatever it says. */
const TELLS = /<(?:[^\s<>]*:)?attr\s[^<>]*["']\s*language\s*["']/i;

/** What Prowlarr's API tells of an indexer, and of a client such as Sonarr. */
type Indexer = { id: number; name: string; enable: boolean };
type Client = { name: string; implementation: string; syncLevel: string; fields: { name: string; value?: unknown }[] };

async function main([option, ...rest]: string[]): Promise<void> {
  if (rest.length > 0 && option !== "--title") throw new Problem(`What is "${rest[0]}"? See --help.`);
  switch (option) {
    case undefined:
      return listIndexers(start(process.env));
    case "--demo":
      return demo();
    case "--title":
      return explainTitles(rest);
    case "--check":
      process.exit((await check(readConfig(process.env))) ? 0 : 1);
    case "--health":
      process.exit((await isProxy(`http://127.0.0.1:${readPort(process.env)}`).catch(() => false)) ? 0 : 1);
    case "--version":
      return console.log(version);
    case "--help":
    case "-h":
      return console.log(HELP);
    default:
      throw new Problem(`What is "${option}"? See --help.`);
  }
}

/** Serves until SIGTERM or SIGINT, and then until everything in flight is answered. */
function start(env: Environment): Config {
  const config = readConfig(env);
  const server = listen(config);
  let isStopping = false;
  for (const signal of ["SIGTERM", "SIGINT"])
    process.on(signal, async () => {
      // The second one ends it in any case: process 1 has no default that would.
      if (isStopping) process.exit(1);
      isStopping = true;
      // Its promise would wait for connections, too, that never send a whole request.
      server.stop();
      while (server.pendingRequests > 0) await Bun.sleep(10);
      process.exit(0);
    });
  config.log.info?.(`language-tag-proxy ${version} listens on port ${config.port}; backend: ${config.backend}`);
  return config;
}

function listen(config: Config): Bun.Server<undefined> {
  try {
    return serve(config);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EADDRINUSE")
      throw new Problem(`Port ${config.port} is taken: set PORT to another one, or stop what uses it.`);
    throw new Problem(`Port ${config.port} can't be opened by this user (${code}): set PORT to one above 1023.`);
  }
}

/** Logs for each of Prowlarr's indexers the URL to paste into Sonarr or Radarr. Never throws. */
async function listIndexers(config: Config): Promise<void> {
  const { apiKey, backend, log, port } = config;
  if (!apiKey)
    return log.info?.("BACKEND_API_KEY is not set, so the indexers are not listed here; searches work without it.");
  let isWaiting = false;
  // At boot, and in compose, both start together: Prowlarr is asked again while it gives no answer of its own.
  for (const end = Date.now() + 120_000; ; await Bun.sleep(1000)) {
    try {
      const { version } = await askProwlarr<{ version: string }>(config, "system/status");
      const indexers = await askProwlarr<Indexer[]>(config, "indexer");
      log.info?.(`Prowlarr ${version} at ${backend} has these indexers; through the proxy, their addresses are:`);
      for (const { id, name } of indexers) log.info?.(`  http://${hostname()}:${port}/${id}/  → ${id}: ${name}`);
      return;
    } catch (error) {
      const { message, status } = problemOf(error, config);
      const isFinal = error instanceof Problem && status !== 503;
      if (isFinal || Date.now() > end) return log.warn(`The indexers can't be listed: ${message}`);
      if (!isWaiting) log.warn(`Prowlarr gives no answer yet, so the proxy asks again for two minutes: ${message}`);
      isWaiting = true;
    }
  }
}

/**
 * Asks Prowlarr's own API with the proxy's key.
 *
 * @throws Problem for an answer that isn't Prowlarr's, or what `fetch` throws for none
 */
async function askProwlarr<Answer>(config: Config, what: string): Promise<Answer> {
  const response = await askBackend(config, `/api/v1/${what}`);
  if (response.status === 401)
    throw new Problem("Prowlarr refuses BACKEND_API_KEY: copy the key from Prowlarr → Settings → General.");
  if (response.status === 503) throw new Problem("Prowlarr is still starting: try again in a minute.", 503);
  if (response.status === 508) throw LOOP;
  const answer: any = await response.json().catch((error) => {
    if (!(error instanceof SyntaxError)) throw error;
  });
  const isProwlarr = what === "system/status" ? answer?.appName === "Prowlarr" : Array.isArray(answer);
  if (!response.ok || !isProwlarr)
    throw new Problem(
      `${config.backend} answers (${response.status}), but not as Prowlarr does: set BACKEND_URL to Prowlarr's address, with its URL base.`,
    );
  return answer;
}

function askBackend({ backend, apiKey, authorization, timeout }: Config, target: string): Promise<Response> {
  const headers = { "x-api-key": apiKey, ...(authorization && { authorization }) };
  return fetch(backend + target, { ...DIRECT, headers, signal: AbortSignal.timeout(timeout) });
}

/** Whether a proxy like this one answers at an address: its `/health` says so, and Prowlarr has none. Throws for no answer. */
async function isProxy(address: string): Promise<boolean> {
  const response = await fetch(`${address}/health`, { ...DIRECT, signal: AbortSignal.timeout(5000) });
  const health: any = await response.json().catch(() => null);
  return response.ok && health?.status === "ok";
}

/**
 * Looks at the whole way, prints each thing as soon as it is known, and returns whether nothing is to be mended. It
 * changes nothing.
 */
async function check(given: Config): Promise<boolean> {
  const config = { ...given, timeout: Math.min(given.timeout, 30_000) };
  // ✓ is well, ✗ is to be mended, ? can't be told from here.
  const marks: string[] = [];
  const tell = (line: string) => {
    marks.push(line[0]!);
    print(line);
  };
  const answers = await isProxy(`http://127.0.0.1:${config.port}`).catch(() => false);
  if (answers) tell(`✓ The proxy answers on port ${config.port}.`);
  else tell(`✗ No proxy answers on port ${config.port}: start it, or set PORT to its port.`);
  await checkProwlarr(config, tell).catch((error) => tell(`✗ ${problemOf(error, config).message}`));

  const faults = marks.filter((mark) => mark === "✗").length;
  if (faults > 0) print(`✗ ${faults} ${faults === 1 ? "thing" : "things"} to mend.`);
  else print(marks.includes("?") ? "? Nothing to mend, but make sure of what is marked with ?." : "✓ All is well.");
  return faults === 0;
}

async function checkProwlarr(config: Config, tell: (line: string) => void): Promise<void> {
  if (!config.apiKey)
    throw new Problem(
      "BACKEND_API_KEY is not set, so the check ends here: copy the key from Prowlarr → Settings → General.",
    );
  const { version } = await askProwlarr<{ version: string }>(config, "system/status");
  tell(`✓ Prowlarr ${version} at ${config.backend} accepts BACKEND_API_KEY.`);

  const applications = await askProwlarr<Client[]>(config, "applications");
  const clients = applications.filter(({ implementation }) => /^(?:Sonarr|Radarr)$/.test(implementation));
  for (const client of clients) tell(await checkClient(client));
  if (clients.length === 0)
    tell('✗ Prowlarr knows no Sonarr and no Radarr: add them under Settings → Apps, the proxy as "Prowlarr Server".');

  const indexers = (await askProwlarr<Indexer[]>(config, "indexer")).filter(({ enable }) => enable);
  print("The latest releases of each indexer:");
  if (!(await checkIndexers(config, indexers)))
    tell("✗ No enabled indexer tells languages: the proxy is of use only with one that does.");
}

/** Whether Sonarr or Radarr asks a proxy like this one, and is kept in step by Prowlarr. */
async function checkClient({ name, syncLevel, fields }: Client): Promise<string> {
  const url = URL.parse(String(fields.find(({ name }) => name === "prowlarrUrl")?.value));
  const mend = `(Prowlarr → Settings → Apps → ${name}), then press Sync App Indexers.`;
  if (!url?.protocol.startsWith("http"))
    return `✗ ${name} has no address that begins with http://: set "Prowlarr Server" to the proxy's ${mend}`;
  const address = (url.origin + url.pathname).replace(/\/+$/, "");
  const isRight = await isProxy(address).catch(() => undefined);
  if (isRight === false)
    return `✗ ${name} asks ${address}, which is not the proxy: set "Prowlarr Server" to the proxy's address ${mend}`;
  if (syncLevel !== "fullSync")
    return `✗ ${name} asks ${address}, but may keep old addresses: set "Sync Level" to Full Sync ${mend}`;
  if (!isRight)
    return `? ${name} asks ${address}, which can't be reached from here: make sure that it is the proxy's, as ${name} sees it.`;
  if (/^(?:localhost|127\..*|\[::1\])$/.test(url.hostname))
    return `? ${name} asks ${address}, which is the proxy only if ${name} runs on this system and in no container.`;
  return `✓ ${name} asks ${address}, Full Sync.`;
}

/** Prints a line for each indexer as it answers, a few asked at a time; returns whether any tells languages. */
async function checkIndexers(config: Config, indexers: Indexer[]): Promise<boolean> {
  const idWidth = Math.max(...indexers.map(({ id }) => String(id).length));
  const nameWidth = Math.max(...indexers.map(({ name }) => name.length));
  let anyTells = false;
  const queue = indexers.values();
  const askInTurn = async () => {
    for (const { id, name } of queue) {
      const [tells, finding] = await checkIndexer(config, id);
      anyTells ||= tells;
      print(`  ${String(id).padStart(idWidth)}  ${name.padEnd(nameWidth)}  ${finding}`);
    }
  };
  await Promise.all([askInTurn(), askInTurn(), askInTurn(), askInTurn()]);
  return anyTells;
}

/** Whether one of an indexer's latest releases tells a language, and what there is to say of them. Never throws. */
async function checkIndexer(config: Config, id: number): Promise<[tells: boolean, finding: string]> {
  try {
    const response = await askBackend(config, `/${id}/api?t=search`);
    if (!response.ok) return [false, `Prowlarr answers ${response.status} ${response.statusText}: its log says why`];
    const feed = new Uint8Array(await readWhole(response));
    const { items, french } = tagFeed(feed);
    const tagged = french.filter(({ decision }) => decision.insert).length;
    const telling = Buffer.from(feed)
      .toString("latin1")
      .split("<item")
      .filter((item) => TELLS.test(item)).length;
    if (items === 0) return [false, "no releases"];
    const releases = `${String(items).padStart(3)} ${items === 1 ? "release" : "releases"}`;
    if (telling === 0) return [false, `${releases}, none tells a language: the proxy can do nothing here`];
    return [true, `${releases}, ${telling} tell a language, ${french.length} French, ${tagged} to be tagged`];
  } catch (error) {
    if ((error as Error).name === "TimeoutError") return [false, `no answer within ${config.timeout / 1000} s`];
    return [false, error === TOO_LARGE ? TOO_LARGE.message : "the answer broke off"];
  }
}

/** Prints what each title becomes where its release has French audio, and why. */
async function explainTitles(given: string[]): Promise<void> {
  const lines = given.includes("-") ? (await Bun.stdin.text()).split("\n") : given;
  const titles = lines.map((line) => line.trim()).filter(Boolean);
  if (titles.length === 0) throw new Problem('--title needs a title, such as --title "Show.S01E01.1080p.WEB-GRP".');
  for (const title of titles) {
    const decision = decide(title);
    console.log(`${apply(title, decision)}\n  ${decision.reason}`);
  }
}

const DEMO_FEED = `<?xml version="1.0" encoding="UTF-8"?>
<rss version="2.0" xmlns:newznab="http://www.newznab.com/DTD/2010/feeds/attributes/">
  <channel>
    <item><title>Les.Revenants.S01E01.1080p.WEB.H264-DEMO</title><newznab:attr name="language" value="French" /></item>
    <item><title>Les.Revenants.S01E02.MULTi.1080p.WEB.H264-DEMO</title><newznab:attr name="language" value="English, French" /></item>
    <item><title>Les.Revenants.S01E03.FRENCH.720p.HDTV.x264-DEMO</title><newznab:attr name="language" value="French" /></item>
    <item><title>Les.Revenants.S01E04.1080p.WEB.H264-DEMO</title><newznab:attr name="language" value="German" /></item>
  </channel>
</rss>
`;

/** Serves with a backend of its own, which has four releases. */
function demo(): void {
  const answer = () => new Response(DEMO_FEED, { headers: { "content-type": "application/rss+xml" } });
  const backend = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: answer });
  const { port } = start({ ...process.env, BACKEND_URL: backend.url.origin });
  console.log(`Try it in another terminal, and see MULTi.VFF in the first two titles; the other two stay as they are:

  curl "http://localhost:${port}/1/api?t=tvsearch&q=les+revenants"
`);
}

if (import.meta.main) {
  main(Bun.argv.slice(2)).catch((error: unknown) => {
    console.error(error instanceof Problem ? error.message : error);
    process.exit(1);
  });
}
