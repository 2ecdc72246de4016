#!/usr/bin/env bun
import { XMLParser } from "fast-xml-parser";

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
  reason: "already French" | "MULTi" | "indicator" | "marker" | "tail" | "too long";
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
  const plain = value.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
  return plain.split(/[,;/|&+]/).some((language) => {
    const spoken = language.split(/[^\p{L}\p{N}]+/u);
    return spoken.some((word) => FRENCH.has(word)) && !spoken.some((word) => SUBTITLES.has(word));
  });
}
const FRENCH = new Set(words(FRENCH_WORDS));
const SUBTITLES = new Set(words(SUBTITLE_WORDS));

/**
 * Decides what a release title of French audio becomes. The result is idempotent: a title with its tag in place is
 * `already French`.
 */
export function decide(title: string): Decision {
  const decision = { at: 0, insert: "", found: "", marker: "" };
  if (title.length > LONGEST_TITLE) return { ...decision, reason: "too long" };

  const name = findNameEnd(title);
  const indicator = findIndicator(title, name.end);
  decision.marker = name.marker;

  const inCapitals = !/\p{Ll}/u.test(title.slice(0, indicator?.index));
  const french = findTag(
    FRENCH_TAG,
    title,
    name.end,
    (tag) => !inCapitals && tag !== "VF" && tag === tag.toUpperCase(),
  );
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
/** A file name has at most 255 bytes, so what is much longer is no release title but somebody's attempt. */
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
function findTag(tags: RegExp, title: string, nameEnd: number, surely: (tag: string) => boolean) {
  let likely: RegExpExecArray | undefined;
  for (const match of title.matchAll(tags)) {
    if (surely(match[0])) return match;
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
  AFTER_MARKER.lastIndex = nameEnd;
  AFTER_MARKER.test(title);
  return AFTER_MARKER.lastIndex;
}
const AFTER_MARKER = pattern(String.raw`[)\]}】]?(?:[ ._](?:sub[\p{L}\p{N}]*[ ._])?)?`, "y");

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

/** The title that a French release gets: `decide` carried out. */
export function tagTitle(title: string): string {
  const { at, insert } = decide(title);
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
      return `${name}, and no quality indicator; tag goes to the end, before group and file extension`;
    case "too long":
      return `longer than ${LONGEST_TITLE} characters: not a release title`;
  }
}

// ─── Feed: a search response with its French titles tagged ──────────────────────────────────────────────────────────
//
// The feed is spliced, never printed anew: all bytes but the inserted tags are the backend's own. It is read as Latin-1,
// one character a byte, so that an offset in the text is an offset in the bytes, whatever the encoding is. All searches
// go forward from where the last one ended, so that no feed, however hostile, takes more than linear time.

/** A release in a feed that has French audio: its title as a client reads it, and what happens to it. */
export interface FrenchRelease {
  title: string;
  decision: Decision;
}

/**
 * Tags the French releases of a search response.
 *
 * @param feed the response's bytes, uncompressed, in any encoding that contains ASCII
 * @returns the bytes with the tags in place (`feed` itself where there is nothing to do: no French, not a feed, not
 * well-formed), how many items the feed has, and its French releases
 */
export function tagFeed(feed: Uint8Array): { body: Uint8Array; items: number; french: FrenchRelease[] } {
  const xml = Buffer.from(feed.buffer, feed.byteOffset, feed.byteLength).toString("latin1");
  const mentions = mentionsOfFrench(xml);
  if (mentions.length === 0) return { body: feed, items: xml.match(/<item[\s>/]/g)?.length ?? 0, french: [] };

  const items = readItems(xml, mentions);
  if (!items) return { body: feed, items: 0, french: [] };

  const french: FrenchRelease[] = [];
  const parts: Uint8Array[] = [];
  let copied = 0;
  for (const item of items) {
    const title = item.french && item.title ? readTitle(xml, item.title) : undefined;
    if (!title?.text) continue;
    const decision = decide(title.text);
    french.push({ title: title.text, decision });
    if (!decision.insert) continue;
    const at = title.offsetOf(decision.at);
    parts.push(feed.subarray(copied, at), Buffer.from(decision.insert));
    copied = at;
  }
  const body = parts.length ? Buffer.concat([...parts, feed.subarray(copied)]) : feed;
  return { body, items: items.length, french };
}

/** Where the tags start that have something to do with a language and may say French: a look, before any reading. */
function mentionsOfFrench(xml: string): number[] {
  const starts: number[] = [];
  for (LANGUAGE.lastIndex = 0; LANGUAGE.test(xml);) {
    const start = xml.lastIndexOf("<", LANGUAGE.lastIndex);
    const next = xml.indexOf("<", LANGUAGE.lastIndex);
    const end = next < 0 ? xml.length : next;
    if (start >= 0 && MAYBE_FRENCH.test(xml.slice(start, end))) starts.push(start);
    LANGUAGE.lastIndex = end;
  }
  return starts;
}
const LANGUAGE = /language/gi;
const MAYBE_FRENCH = /fr|v[fo]|&/i;

/** A release: where the content of its own title starts and ends, and whether one of its languages is French. */
type Item = { title?: { start: number; end: number }; french: boolean };

/** The items of a feed, or nothing where it isn't well-formed. `mentions` is what `mentionsOfFrench` found. */
function readItems(xml: string, mentions: number[]): Item[] | undefined {
  const items: Item[] = [];
  let item: Item | undefined;
  let depthOfChildren = 0;
  let next = 0;

  const wellFormed = walk(xml, {
    open(name, depth, start, end, empty) {
      if (!item) {
        if (name !== "item") return;
        items.push((item = { french: false }));
        depthOfChildren = depth + 1;
      } else if (depth === depthOfChildren) {
        if (name === "title" && !empty) item.title ??= { start: end, end: 0 };
        while (mentions[next]! < start) next++;
        if (mentions[next] === start && !item.french) item.french = saysFrench(xml.slice(start, end));
      }
    },
    close(name, depth, start) {
      if (!item) return;
      if (depth < depthOfChildren) item = undefined;
      else if (depth === depthOfChildren && name === "title" && item.title) item.title.end ||= start;
    },
  });
  return wellFormed ? items : undefined;
}

/** What `walk` meets: a tag from `start` to `end`, with the name of its element and the number of its ancestors. */
interface Visitor {
  /** `empty`: the element is closed by its own tag, `<title/>`; `close` follows all the same. */
  open(name: string, depth: number, start: number, end: number, empty: boolean): void;
  close(name: string, depth: number, start: number): void;
}

/**
 * Walks through all elements of a document. Returns whether it is well-formed as far as that can shift a title: tags,
 * attributes, nesting, comments, CDATA sections, references (XML 1.0, §2 to §4). Nothing is expanded.
 */
function walk(xml: string, visitor: Visitor): boolean {
  const ancestors: string[] = [];
  let hasRoot = false;
  let stray = strayAmpersand(xml, 0);
  let at = xml.startsWith(BYTE_ORDER_MARK) ? BYTE_ORDER_MARK.length : 0;
  for (;;) {
    const start = xml.indexOf("<", at);
    if (ancestors.length === 0 && xml.slice(at, start < 0 ? undefined : start).trim()) return false;
    if (start < 0) return hasRoot && ancestors.length === 0 && stray === Infinity;

    const mark = xml[start + 1];
    if (mark === "/") {
      const name = ancestors.pop();
      if (name === undefined || !xml.startsWith(name, start + 2)) return false;
      END_OF_TAG.lastIndex = start + 2 + name.length;
      if (!END_OF_TAG.test(xml)) return false;
      at = END_OF_TAG.lastIndex;
      visitor.close(name, ancestors.length, start);
    } else if (mark === "!" || mark === "?") {
      at = endOfSection(xml, start);
      if (at < 0 || stray < start) return false;
      if (stray < at) stray = strayAmpersand(xml, at);
    } else {
      START_TAG.lastIndex = start;
      if (!START_TAG.test(xml) || (hasRoot && ancestors.length === 0)) return false;
      at = START_TAG.lastIndex;
      hasRoot = true;
      const name = nameAt(xml, start + 1);
      const empty = xml[at - 2] === "/";
      visitor.open(name, ancestors.length, start, at, empty);
      if (empty) visitor.close(name, ancestors.length, at);
      else ancestors.push(name);
    }
  }
}
const BYTE_ORDER_MARK = "\xEF\xBB\xBF";
const START_TAG = /<[^\s<>/&"'=!?]+(?:\s+[^\s<>/&"'=]+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*\s*\/?>/y;
const END_OF_TAG = /\s*>/y;

function nameAt(xml: string, start: number): string {
  NAME_END.lastIndex = start;
  NAME_END.test(xml);
  return xml.slice(start, NAME_END.lastIndex - 1);
}
const NAME_END = /[\s/>]/g;

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
const DOCTYPE_PART = /[^"'<>[\]]+|"[^"]*"|'[^']*'|<!--[^]*?-->|[<>[\]]/y;

/** The next `&` that begins no reference, or Infinity. */
function strayAmpersand(xml: string, from: number): number {
  STRAY_AMPERSAND.lastIndex = from;
  return STRAY_AMPERSAND.test(xml) ? STRAY_AMPERSAND.lastIndex - 1 : Infinity;
}
const STRAY_AMPERSAND = /&(?!(?:#\d+|#x[\da-f]+|[^\s<>&;#"']+);)/gi;

/** Whether a tag is a `language` attribute that says French. There are few different ones: each is parsed once. */
function saysFrench(tag: string): boolean {
  if (tag.length > LONGEST_TITLE) return false;
  const known = remembered.get(tag);
  if (known !== undefined) return known;
  const [[element, { name, value }]] = Object.entries(parser.parse(utf8(tag).replace(/\/?>$/, "/>"))) as [
    [string, { name?: string; value?: string }],
  ];
  const french = /^(?:.*:)?attr$/.test(element) && name?.trim().toLowerCase() === "language" && isFrench(value ?? "");
  if (remembered.size === 1000) remembered.clear();
  remembered.set(tag, french);
  return french;
}
const remembered = new Map<string, boolean>();
const parser = new XMLParser({
  ignoreAttributes: false,
  attributeNamePrefix: "",
  parseTagValue: false,
  trimValues: false,
  htmlEntities: true,
});

/** A title as a client reads it, and the way back: from an index into the text to the offset in the feed. */
type Title = { text: string; offsetOf(index: number): number };

/** Reads a title: references and CDATA sections resolved, white space around it left out. One with elements is none. */
function readTitle(xml: string, { start, end }: { start: number; end: number }): Title | undefined {
  const raw = xml.slice(start, end);
  if (raw.length > 10 * LONGEST_TITLE || !/[&<\x80-\xFF]/.test(raw)) {
    const first = start + raw.length - raw.trimStart().length;
    return { text: raw.trim(), offsetOf: (index) => first + index };
  }

  let text = "";
  let read = 0;
  let isData = false;
  const pieces: { textEnd: number; end: number }[] = [];
  const take = (piece: string, end: number) => {
    text += piece;
    read = end;
    pieces.push({ textEnd: text.length, end: start + end });
  };
  for (const { 0: special, index } of raw.matchAll(SPECIAL_IN_TITLE)) {
    take(raw.slice(read, index), index);
    const end = index + special.length;
    if (special === "<![CDATA[") isData = true;
    else if (special === "]]>") isData = false;
    else if (special === "<" && !isData) return undefined;
    else if (special[0] === "&" && !isData) take(readReference(special), end);
    else if (!special.startsWith("<!--")) take(utf8(special), end);
    read = end;
  }
  take(raw.slice(read), raw.length);

  const skipped = text.length - text.trimStart().length;
  const offsetOf = (index: number) => {
    const piece = pieces.find(({ textEnd }) => skipped + index <= textEnd)!;
    return piece.end - (piece.textEnd - skipped - index);
  };
  return { text: text.trim(), offsetOf };
}
const UTF8_SEQUENCE = String.raw`[\xC2-\xDF][\x80-\xBF]|[\xE0-\xEF][\x80-\xBF]{2}|[\xF0-\xF4][\x80-\xBF]{3}`;
const SPECIAL_IN_TITLE = new RegExp(
  String.raw`<!\[CDATA\[|\]\]>|<!--[^]*?-->|<|&[^\s&;<>]+;|(?:${UTF8_SEQUENCE})+`,
  "g",
);

/** The character that a reference such as `&amp;`, `&#233;` or `&#xE9;` stands for; an unknown one stays as it is. */
function readReference(reference: string): string {
  const number = reference.match(/^&#(?:x([\da-f]+)|(\d+));$/i);
  const code = number ? parseInt(number[1] ?? number[2]!, number[1] ? 16 : 10) : NaN;
  return code <= 0x10ffff ? String.fromCodePoint(code) : (CHARACTERS[reference] ?? reference);
}
const CHARACTERS: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'" };

/** Text that was read as Latin-1, read as UTF-8 where it is that; what isn't (broken, or Latin-1 indeed) stays. */
function utf8(text: string): string {
  return text.replace(UTF8_SEQUENCES, (sequence) => Buffer.from(sequence, "latin1").toString());
}
const UTF8_SEQUENCES = new RegExp(`(?:${UTF8_SEQUENCE})+`, "g");
