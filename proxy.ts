#!/usr/bin/env bun
/**
 * This proxy stands between Sonarr or Radarr (the clients) and Prowlarr (the backend). Where an indexer says that a
 * release has French audio, the proxy writes that into the title, because the clients' custom formats look only there:
 *
 *     <title>Show.S01E01.1080p.WEB-GRP</title> <newznab:attr name="language" value="French"/>
 *     <title>Show.S01E01.MULTi.VFF.1080p.WEB-GRP</title> …
 *
 * Everything else in a feed, and every other answer, passes through untouched. To run it:
 * `BACKEND_URL=http://prowlarr:9696 bun proxy.ts`, or `bun proxy.ts --help`.
 *
 * The order: configuration, rules, feed, proxy, check, command line. Start at `handle`, where a request comes in: it
 * asks the backend (`forward`), reads the answer to a search (`answerSearch`), finds the French releases in it
 * (`tagFeed`), decides on each title (`decide`), and sends the feed on with its tags (`streamOf`).
 */
import { isUtf8 } from "node:buffer";
import { XMLParser } from "fast-xml-parser";
import { version } from "./package.json";

/** A failure whose message is for the user: one plain sentence that says what to do, without keys or passwords. */
export class Problem extends Error {
  /** @param status what a failed request is answered with, or logged with if its client has left: 499, as in nginx */
  constructor(
    message: string,
    readonly status = 502,
  ) {
    super(message);
  }
}

/** The words of a list. */
const words = (list: string) => list.split(/\s+/);

// ─── Configuration: what the environment says ───────────────────────────────────────────────────────────────────────

/** What the environment says, checked. */
export interface Config {
  /** Prowlarr's address with its URL base, without a final slash and without credentials, so that it can be logged. */
  backend: string;
  /** Prowlarr's URL base, such as `/prowlarr`, or empty. */
  urlBase: string;
  /** The `Authorization` header for the credentials in BACKEND_URL, or empty. */
  authorization: string;
  /** The keys of Prowlarr and its clients, for `--check` alone. Empty if not set. */
  apiKey: string;
  clientKeys: { Sonarr: string[]; Radarr: string[] };
  port: number;
  /** How many milliseconds the backend may take to begin its answer. */
  timeout: number;
  log: Log;
}

/** One function per level. Those below LOG_LEVEL are undefined, so that `log.debug?.(…)` costs nothing. */
export type Log = { debug?: Print | undefined; info?: Print | undefined; warn: Print };
type Print = (line: string) => void;

/**
 * Reads the configuration from environment variables. An empty one counts as not set.
 *
 * @throws Problem that names the variable and what is expected
 */
export function readConfig(env: NodeJS.ProcessEnv): Config {
  return {
    ...readBackend(env["BACKEND_URL"]?.trim() ?? ""),
    apiKey: readKey(env, "BACKEND_API_KEY", "Prowlarr"),
    clientKeys: {
      Sonarr: readKey(env, "SONARR_API_KEY", "Sonarr").split(",").filter(Boolean),
      Radarr: readKey(env, "RADARR_API_KEY", "Radarr").split(",").filter(Boolean),
    },
    port: readPort(env),
    timeout: 1000 * readNumber(env, "BACKEND_TIMEOUT", 120, 86_400, "a number of seconds"),
    log: readLog(env),
  };
}

function readKey(env: NodeJS.ProcessEnv, name: string, program: string): string {
  const value = env[name]?.replace(/\s*,\s*/g, ",").trim() ?? "";
  if (/^(?!["'])[!-~]*$/.test(value)) return value;
  throw new Problem(
    `${name} must be the key as ${program} shows it under Settings → General, without spaces or quotation marks.`,
  );
}

function readBackend(address: string): Pick<Config, "backend" | "urlBase" | "authorization"> {
  const example = "such as http://prowlarr:9696 or http://nas:9696/prowlarr";
  if (!address) throw new Problem(`BACKEND_URL is not set: it must be Prowlarr's address, ${example}.`);
  if (/^["']|["']$/.test(address)) throw new Problem(`BACKEND_URL must be without quotation marks, ${example}.`);
  if (/\s/.test(address))
    throw new Problem(`BACKEND_URL must be an address alone, without a comment or spaces, ${example}.`);
  const url = URL.parse(address);
  if (!url || !/^https?:$/.test(url.protocol))
    throw new Problem(`BACKEND_URL must begin with http:// or https:// and be Prowlarr's address, ${example}.`);
  if (url.search || url.hash) throw new Problem(`BACKEND_URL must end before the ? or #, ${example}.`);
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
    throw new Problem("BACKEND_URL has a % in its user name or password that escapes nothing: write it as %25.");
  }
}

function readPort(env: NodeJS.ProcessEnv): number {
  return readNumber(env, "PORT", 8080, 65_535, "a port number");
}

function readNumber(env: NodeJS.ProcessEnv, name: string, fallback: number, most: number, kind: string): number {
  const value = env[name]?.trim() || String(fallback);
  if (!/^\d{1,5}$/.test(value) || Number(value) < 1 || Number(value) > most)
    throw new Problem(`${name} must be ${kind} from 1 to ${most}, not ${JSON.stringify(value)}.`);
  return Number(value);
}

function readLog(env: NodeJS.ProcessEnv): Log {
  const value = env["LOG_LEVEL"]?.trim().toLowerCase() || "info";
  const least = ["debug", "info", "warn"].indexOf(value);
  if (least < 0) throw new Problem(`LOG_LEVEL must be debug, info or warn, not ${JSON.stringify(value)}.`);
  return { debug: least > 0 ? undefined : print, info: least > 1 ? undefined : print, warn: print };
}

/**
 * Prints one line. Control characters in a title, a search or an indexer's name must not fake a second one, nor may
 * those for text from right to left (U+202A to U+202E, U+2066 to U+2069) reverse it.
 */
function print(line: string): void {
  console.log(line.replace(/[\p{Cc}\p{Zl}\p{Zp}\u202A-\u202E\u2066-\u2069]/gu, "\uFFFD"));
}

// ─── Rules: which values are French, and where in a release title the tag goes ──────────────────────────────────────
//
// The parts of a release title, in the words of this file:
//
//     Show.2019.S01E01-E03.SUBFRENCH.PROPER.1080p.WEB-DL.DDP5.1.H.264-GROUP.mkv
//     └ name ─┘ └ marker ┘ └ release tags ┘ └ quality indicators ───┘ └ tail ─┘
//
// The tag, MULTi.VFF, goes before the first quality indicator after the name: here before 1080p.
//
// These functions are pure, and the table at the start of proxy.test.ts says what they must do. They are right if
// Sonarr's and Radarr's own parsers find French in the result, and read everything else (name, year, season, episodes,
// quality, revision, group, hash, edition) as before.
//
// The patterns are built from lists of words. To add a streaming service, add a word to SERVICES. A hyphen in a word
// stands for any separator or none: WEB-DL matches WEB-DL, WEB.DL, WEB DL and WEBDL.
//
// A title comes from a stranger, so a pattern must have only one way to read it: a number is taken whole, and
// neighbouring parts never match the same characters. Otherwise one title of a hundred characters could stop the proxy.

/** The tag of a French release: MULTi for several languages, VFF for the French of France. */
const TAG = "MULTi.VFF";

// Release tags.
const FRENCH_TAGS = "VFF VOF VFQ VFI VF2 TRUEFRENCH FRENCH VF";
const OTHER_TAGS = `MULTi VO VOA VOST VOSTFR SUBFRENCH SUBFORCED FR FRE FRA ENG ENGLISH GERMAN ITALIAN ITA SPANISH ESP
  JAPANESE KOREAN AUDIO DUAL DUBBED DL LD MD WiTH AD COMPLETE INTEGRALE INTÉGRALE PROPER REPACK RERIP REAL
  iNTERNAL LIMITED UNRATED EXTENDED REMASTERED RESTORED UNCUT CUSTOM HYBRID IMAX HC HSBS 3D`;

const RESOLUTIONS = "4K 8K UHD FHD";
const WEB_SOURCES = "WEB-DL WEB-Rip WEB-Mux WEB-HD WEB-HDRip WEB-DLRip";
const SOURCES = `Blu-Ray MBluRay Full-Blu-Ray BD BD-Rip BD-Mux BD-Remux BD-Light BD-Full Full-BD BD25 BD50 BR-Rip UHD-BD
  UHD-BDRip UHD-Remux Remux HD-DVD HD-Light 4K-Light mHD HD-TV SD-TV PDTV DSR TV-Rip VOD-Rip HD-Rip HD-CAM DVD DVD5 DVD9
  DVDR DVD-Rip DVD-Scr`;
const CODECS = "x264 x265 x266 H-264 H-265 H-266 HEVC AVC AV1 VP9 VC-1 XviD DivX MPEG-2 MPEG-4";
const PICTURES = "HDR HDR10 HDR10Plus DV DoVi SDR 8-bit 10-bit Hi10 Hi10P";
const SOUNDS = "DTS DTS-HD DTS-X TrueHD Atmos AC3 EAC3 DD DDP AAC FLAC Opus PCM LPCM MP3";
// These count only right before a WEB source, because many are words that a name may hold as well: streaming services,
// and TS for a telesync, which Sonarr knows by the word before the WEB.
const SERVICES = `Amazon AMZN ADN ATV ATVP CANAL+ CR CRAV DP DSNP HBO HMAX HULU iP iT MAX MYCANAL NF Netflix PCOK PMTP
  SALTO STAN TF1`;
const TELESYNC = "TS";

const SEASON_WORDS = "Saison Season Stagione Temporada";
const EPISODE_WORDS = "E EP Épisode Episode Episodio";
const PART_WORDS = "Part Partie Vol Volume";
const EXTENSIONS = "mkv mp4 avi ts m2ts wmv mpg iso nzb torrent srt ass sub rar zip";

/** A pattern for any one word of the lists. A hyphen is any separator or none; + is the only other special sign. */
const anyOf = (...lists: string[]) =>
  `(?:${lists.flatMap(words).join("|").replaceAll("+", "\\+").replaceAll("-", "[ ._-]?")})`;
/** A pattern that ignores letter case, and takes an é for a letter. */
const toPattern = (source: string, flags = "") => new RegExp(source, `iu${flags}`);

/** The start and the end of a word. They are not `\b`, to which an underscore is a letter and é is none. */
const START = String.raw`(?<![\p{L}\p{N}])`;
const END = String.raw`(?![\p{L}\p{N}])`;
const GAP = "[ ._-]";

const EXTENSION_AND_END = String.raw`(?:\.${anyOf(EXTENSIONS)})?$`;
/** A release group behind the hyphen: `GROUP.mkv` in `x264-GROUP.mkv`, but not the resolution in `Le-Film-720p`. */
const GROUP = String.raw`(?!\d{3,4}[pi]${END})(?=\d*\p{L})[\p{L}\p{N}]+`;
const GROUP_AT_END = `(?<=-)${GROUP}${EXTENSION_AND_END}`;

// Quality indicators: what a title says about picture and sound, unless it is the group's name.
const FORMATS = anyOf(RESOLUTIONS, CODECS, PICTURES);
/** `1080p`, `1920x800`, `x265`, `HDR`, `DDP5.1` */
const FORMAT = String.raw`(?:\d{3,4}(?:[pi]|x\d{3,4})|${FORMATS}|${anyOf(SOUNDS)}(?:\d[ ._]\d)?)`;
/** A lone WEB is a source only before a format, a release tag, a hyphen, a bracket or the end: not in "Web of Lies". */
const WEB = String.raw`WEB(?=${GAP}(?:${FORMAT}|${anyOf(FRENCH_TAGS, OTHER_TAGS)})${END}|-|[)\]]|[ .]*$)`;
/** `DSNP` in `DSNP.WEB-DL` */
const BEFORE_WEB = `${anyOf(SERVICES, TELESYNC)}(?=${GAP}(?:WEB|${anyOf(WEB_SOURCES)})${END})`;
const QUALITY = `(?:${FORMAT}|${anyOf(WEB_SOURCES, SOURCES)}|${BEFORE_WEB}|${WEB})${END}`;
const QUALITY_INDICATOR = toPattern(`${START}(?!${GROUP_AT_END})${QUALITY}`, "g");

// Markers: what ends the name. That is a season, an episode, a date or a year, with the numbers that continue it (-E03,
// -08 of 24, Part 2), because a client loses episodes if the tag stands among them.
const YEAR = String.raw`(?:18[89]\d|19\d\d|20\d\d)`;
const NUMBER = String.raw`\d{1,5}(?!\d)`;
/** `S01`, `Saison 1` */
const SEASON = String.raw`(?:S|${anyOf(SEASON_WORDS)}${GAP}?)\d{1,4}(?!\d)`;
/** `E01`, `Episode 1` */
const EPISODE = String.raw`${anyOf(EPISODE_WORDS)}${GAP}?${NUMBER}`;
/** What stands before a further number: the `E` of `S01E01-E03`, the `x` of `5x01 - x02`, `2010x`, `of `, `Part `. */
const NUMBER_LABEL = String.raw`(?:S|EP?|(?:\d{0,2}|${YEAR})x(?=\d\d?(?!\d))|of[ ._]|${anyOf(PART_WORDS)}${GAP}?)`;
const NUMBER_SEPARATOR = String.raw`[ ._~–(&+-]`;
/** A further number with its separators: `-E03`, ` - x02`, `.Part 2`, `-08`, ` of 24`, `EXX` for a whole season */
const NEXT_NUMBER = String.raw`${NUMBER_SEPARATOR}{0,3}(?:${NUMBER_LABEL}(?:${NUMBER}|XX)|(?<=${NUMBER_SEPARATOR})\d{1,4}${END})`;
/**
 * All further numbers, and the version or part behind the last: `-E03`, the `v2` of `E12v2`, the `c` of `E22c`. There
 * are at most 16, because a pattern without a limit could be tried for ever from each place of a hostile title.
 */
const MORE_NUMBERS = String.raw`(?:${NEXT_NUMBER}){0,16}(?:v\d|[a-h])?${END}`;

/** An anime's episode: ` - 12 `, `_-_12v2_`, `Title-01[`. To Sonarr it ends the name, to Radarr it is a part of it. */
const ABSOLUTE_NUMBER = toPattern(String.raw`(?:[ ._]-[ ._]|(?<=\w)-)\d{2,4}(?:\.5)?(?:v\d)?${END}`);
/** The first of these patterns that matches anywhere in a title ends the name. */
const MARKERS = [
  // S01E01, S01.E01-E03, Season 1 - Episode 01, (S05E06-08 of 24). A hyphen right after S01E01 belongs to the
  // marker, because Sonarr cuts off `S01E01-` as a whole before it looks for the group.
  String.raw`${START}${SEASON}${GAP}{0,3}${EPISODE}${MORE_NUMBERS}(?:(?<=S\d{1,4}E\d{1,5})-)?`,
  // 1x01_02, 2010x15 - 2010x16; but not the x264 of DD5.1x264, which Sonarr removes first, nor the size 1920x800
  String.raw`${START}(?:\d\d?x(?!26[45])\d{1,3}|${YEAR}x(?:\d\d?|[1-4]\d\d))(?!\d)${MORE_NUMBERS}`,
  // 2023-05-26, 2015.0308
  String.raw`${START}${YEAR}${GAP}?(?:0[1-9]|1[0-2])${GAP}?(?:0[1-9]|[12]\d|3[01])(?!\d)${MORE_NUMBERS}`,
  // [HDTV 720p][Cap.201_204], the Spanish way
  `${START}Cap${GAP}?${NUMBER}${MORE_NUMBERS}`,
  // S01, S01-S09, Saison 1; but not the group in x264-S6
  `${START}(?<!${QUALITY}-)${SEASON}${MORE_NUMBERS}`,
  // E07-E08, Episode 99-100, Ep.01; but not the hash [E34E548F]
  String.raw`${START}(?![\dA-F]{8}[\])])${EPISODE}${MORE_NUMBERS}`,
  // 2019, 2049.2017, 1984 (2020), 1979-2015. A year at the very start belongs to the name.
  String.raw`(?<=[^\p{L}\p{N}])${YEAR}(?:[ ._([–-]{1,3}${YEAR})*${END}`,
]
  .map((source) => toPattern(source))
  .concat(ABSOLUTE_NUMBER);

/** A word that begins with SUB and is no file extension: a tag right before it speaks of subtitles, also to Sonarr. */
const SUBTITLE_FOLLOWS = String.raw`(?!\.sub$)${GAP}{0,3}sub`;
const FRENCH_TAG = toPattern(`${START}${anyOf(FRENCH_TAGS)}${END}(?!${SUBTITLE_FOLLOWS})`, "g");
/** A MULTi that no word about subtitles follows. */
const MULTI_TAG = toPattern(`${START}MULTi${END}(?!${SUBTITLE_FOLLOWS})`, "g");
/** What follows a release tag: another one, a quality indicator, the group or the end. */
const AFTER_A_RELEASE_TAG = toPattern(
  String.raw`[ ._\-()[\]{}]{0,5}(?:${anyOf(FRENCH_TAGS, OTHER_TAGS)}${END}|${QUALITY}|${GROUP_AT_END}|${EXTENSION_AND_END})`,
  "y",
);
/** What the tag goes after: a closing bracket, words that begin with SUB, and a separator. */
const AFTER_A_MARKER = toPattern(
  String.raw`[)\]}】]?(?:(?:${SUBTITLE_FOLLOWS}[\p{L}\p{N}]*${END})+[ ._]?|[ ._])?`,
  "y",
);
/** Group, hash and extension at the end of a title: `-GRP`, ` [Kosaka] [9C57891E].mkv` */
const TAIL = toPattern(String.raw`(?:-${GROUP})?(?:[ ._]?[([][^()[\]]*[)\]]){0,5}${EXTENSION_AND_END}`);
/** A group in front, as in `[TMS-Remux].Series.720p`, or nothing. */
const GROUP_IN_FRONT = /^(?:\[[^\]]*\])?/;
/**
 * A hyphen that opens the quality, as in `S01E01-720p`, but not in `S01E01 -[1080p]`. Behind a bare number of three
 * digits (`One-Piece-720-720p`) it is none, because a dot would follow the number then: Sonarr reads `-720.` as S07E20.
 */
const OPENING_HYPHEN = /(?<![ ._]|[._-]\d{3})-/y;

/** In characters. A file name has at most 255 bytes, so what is much longer is no release's title. */
const LONGEST_TITLE = 300;

/** What happens to a title: `insert` goes in at the index `at`. If `insert` is empty, the title stays as it is. */
export interface Decision {
  at: number;
  insert: string;
  /** Why, in words for the user. */
  reason: string;
}

/**
 * Decides what becomes of the title of a release with French audio.
 *
 * @param title without white space around it
 */
export function decide(title: string): Decision {
  const stays = (reason: string): Decision => ({ at: 0, insert: "", reason });
  if (title.length > LONGEST_TITLE) return stays(`longer than ${LONGEST_TITLE} characters: not a release title`);

  const nameEnd = findNameEnd(title);
  const quality = findQuality(title, nameEnd);
  const isAmongTags = ({ start, end }: Found) =>
    start >= nameEnd.at && find(AFTER_A_RELEASE_TAG, title, end) !== undefined;

  // If all before the quality is in capitals, FRENCH may be a word of the name (THE.FRENCH.DISPATCH.1080p).
  const mayBeName = (word: string) => word === "FRENCH" && !/\p{Ll}/u.test(title.slice(0, quality?.start));
  const french = findReleaseTag(FRENCH_TAG, title, (tag) => {
    // Two letters may be anything in a name.
    if (tag.text === "VF") return tag.start >= nameEnd.at;
    // In capitals it counts in the name as well, because French trackers put the year last (Film.FRENCH.2011.DVDRip).
    return (tag.text === tag.text.toUpperCase() && !mayBeName(tag.text)) || isAmongTags(tag);
  });
  if (french) return stays(`already French: "${french.text}"`);

  // MULTi and MULTI are spellings of the release tag. A Multi may be a word of the name (Multi.Facial.1995).
  const multi = findReleaseTag(MULTI_TAG, title, (tag) => /^MULT[Ii]$/.test(tag.text) || isAmongTags(tag));
  if (multi) return { ...behindMulti(title, multi.end, quality), reason: `${multi.text} found: ".VFF" added` };

  const whereNameEnds = nameEnd.marker ? `name ends after "${nameEnd.marker}"` : "no year or episode found";
  if (quality) {
    const reason = `${whereNameEnds}; tag goes before "${quality.text}"`;
    return { ...beforeQuality(title, quality.start, nameEnd), reason };
  }
  if (nameEnd.marker) {
    const reason = `${whereNameEnds}; no quality follows, so the tag goes right there`;
    return { ...tagBeside(title, find(AFTER_A_MARKER, title, nameEnd.at)!.end), reason };
  }
  const reason = "no year, episode or quality found; tag goes before group and extension";
  return { ...tagBeside(title, title.search(TAIL)), reason };
}

/** The title that a decision leads to. */
export function apply(title: string, { at, insert }: Decision): string {
  return title.slice(0, at) + insert + title.slice(at);
}

/** From the index `start` up to, but not including, the index `end`. */
type Span = { start: number; end: number };
/** A part of a title. */
type Found = Span & { text: string };
/**
 * Where the name ends, and the marker that ends it. Without a marker, that is 0. It is certain unless there is none, or
 * only an absolute number, which Radarr takes for a part of the name.
 */
type NameEnd = { at: number; marker: string; isCertain: boolean };

/** The first match. The index `from` counts only for a pattern with the flag g (from there on) or y (right there). */
function find(pattern: RegExp, title: string, from = 0): Found | undefined {
  pattern.lastIndex = from;
  const match = pattern.exec(title);
  return match ? { text: match[0], start: match.index, end: match.index + match[0].length } : undefined;
}

function findNameEnd(title: string): NameEnd {
  for (const pattern of MARKERS) {
    const marker = find(pattern, title);
    if (marker) return { at: marker.end, marker: marker.text, isCertain: pattern !== ABSOLUTE_NUMBER };
  }
  return { at: 0, marker: "", isCertain: false };
}

/** The first quality indicator after the name. One at the very start, or in a group's brackets there, doesn't count. */
function findQuality(title: string, nameEnd: NameEnd): Found | undefined {
  // Not 0: a title's first word is never its quality.
  const from = nameEnd.at || find(GROUP_IN_FRONT, title)!.end || 1;
  const quality = find(QUALITY_INDICATOR, title, from);
  // If the name's end is not certain, the tag goes inside brackets, but not into [WEB]: Sonarr needs both brackets.
  const isLoneWeb = quality && !nameEnd.isCertain && /^WEB[)\]]/i.test(title.slice(quality.start));
  return isLoneWeb ? find(QUALITY_INDICATOR, title, quality.end) : quality;
}

/** The first release tag that counts. */
function findReleaseTag(pattern: RegExp, title: string, counts: (tag: Found) => boolean): Found | undefined {
  let tag = find(pattern, title);
  while (tag && !counts(tag)) tag = find(pattern, title, tag.end);
  return tag;
}

/** What goes in, and where. */
export type Insertion = Pick<Decision, "at" | "insert">;

/** `.VFF` behind a MULTi. A dot follows it before an underscore, and before a hyphen that opens the quality. */
function behindMulti(title: string, at: number, quality: Found | undefined): Insertion {
  const needsDot = title[at] === "_" || (title[at] === "-" && quality?.start === at + 1);
  return { at, insert: needsDot ? ".VFF." : ".VFF" };
}

/** The tag before a quality indicator, and before a bracket or a hyphen that opens it. */
function beforeQuality(title: string, at: number, nameEnd: NameEnd): Insertion {
  // Radarr reads everything before a bracket as the name if that has no certain end: `Title - 12 [MULTi.VFF 1080p]`.
  // Sonarr needs `[WEB ` whole: `Title - 12 [WEB MULTi.VFF 1080p]`.
  if (!nameEnd.isCertain && /[([]/.test(title[at - 1] ?? ""))
    return tagBeside(title, at + /^(?:WEB[ .])?/i.exec(title.slice(at))![0].length);
  // `Film (2019) MULTi.VFF [1080p]`
  while (at > nameEnd.at && "([{【".includes(title[at - 1]!)) at--;
  // In a title with underscores, a hyphen may belong to the group (`Artist-A_Song_(2009)-FR-x264`), unless it stands
  // right behind the name, or behind a closing bracket there (`Artist-A_Song_(2009)-x264`).
  const isRightBehindName = at - nameEnd.at <= ")-".length;
  const opensQuality = isRightBehindName || !title.includes("_");
  if (opensQuality && find(OPENING_HYPHEN, title, at - 1)) return { at: at - 1, insert: `.${TAG}.` };
  return tagBeside(title, at);
}

const forEachSeparator = <Value>(make: (separator: string) => Value): Record<string, Value> =>
  Object.fromEntries(["", ".", " "].map((separator) => [separator, make(separator)]));
/** The tag between any two separators. To put it together anew for each title takes 4 % of a search. */
const TAG_BETWEEN = forEachSeparator((left) => forEachSeparator((right) => left + TAG + right));

/**
 * The tag for the index `at`, with the separator that the title uses: a dot or a space. Never an underscore, because
 * `\bVFF\b` in the clients' custom formats does not match `VFF_`.
 */
function tagBeside(title: string, at: number): Insertion {
  const before = title.charAt(at - 1);
  const after = title.charAt(at);
  const usesSpaces = title.includes(" ") && before !== "." && before !== "_";
  const separator = usesSpaces ? " " : ".";
  const left = at === 0 || " ._-([{【".includes(before) ? "" : separator;
  const right = after === "" || ((left || at === 0) && " .-".includes(after)) ? "" : separator;
  return { at, insert: TAG_BETWEEN[left]![right]! };
}

/** Words in a `language` attribute for French audio, and for subtitles. */
const FRENCH_WORDS = "french francais francaise fr fra fre vf vff vfq vfi vf2 vof truefrench";
const SUBTITLE_WORDS = "sub subs subbed subtitle subtitles subtitled sous subfrench vost vosta vostfr stfr";
const FRENCH = toPattern(`${START}${anyOf(FRENCH_WORDS)}${END}`);
const SUBTITLES = toPattern(`${START}${anyOf(SUBTITLE_WORDS)}${END}`);

/**
 * Whether the value of a `language` attribute says that there is French audio: `French`, `English, Français`, `fr-FR`,
 * `VFF`. Letter case and accents don't matter. Subtitles (`French subtitles`, `VOSTFR`) don't count, and neither do
 * words that only begin alike (`Frisian`).
 */
export function isFrench(value: string): boolean {
  const plain = value.normalize("NFD").replace(/\p{M}/gu, "");
  return plain.split(/[,;/|&+]/).some((language) => FRENCH.test(language) && !SUBTITLES.test(language));
}

// ─── Feed: a search response with its French titles tagged ──────────────────────────────────────────────────────────
//
// Tags are inserted into the feed, which is never written anew: every other byte is the backend's own. The feed is read
// as Latin-1, one character per byte, so that an index into the text is an offset in the feed, whatever its encoding.
// Whether the feed is well-formed is for the client to judge.
//
// One pattern, LANDMARK, finds in one pass what matters in a feed. In this one, that is the start of the item with its
// title, the comment, the language, and the end of the item:
//
//     <item><title>Film.2019</title><size>1</size><!-- <item> --><newznab:attr name="language" value="French"/></item>
//
// A feed comes from a stranger, so its cost must be linear. From a `<`, LANDMARK reads no further than to the next one
// or, for a title, the one after that. Only a section (a comment and the like) may be longer, and it always matches.

/** What a search response holds, and the tags that it gets. */
export interface TaggedFeed {
  items: number;
  /** How many items with a title have French audio. */
  french: number;
  /** In the feed's order. `at` is an offset in it. */
  tags: Insertion[];
}

/** A search finds 100 releases, rarely 5,000. To read the titles of many more would hold up everybody else. */
const MOST_ITEMS = 20_000;
/** In bytes of all elements that go to fast-xml-parser. It takes some 10 µs for each, and a feed may hold a million. */
const MOST_PARSED = 2 * 1024 * 1024;

/**
 * Finds the tags for the French releases of a search response: the items with a `language` attribute that says French.
 * A feed of more than MOST_ITEMS items gets none.
 *
 * @param bytes the response, uncompressed, in any encoding that contains ASCII
 * @param onFrench is told of each French release: its title as a client reads it, and what happens to it
 */
export function tagFeed(bytes: Uint8Array, onFrench?: (title: string, decision: Decision) => void): TaggedFeed {
  const feed = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const result: TaggedFeed = { items: 0, french: 0, tags: [] };
  let parsed = 0;
  const isFrenchElement = (attributes: string) => {
    parsed += attributes.length;
    return parsed <= MOST_PARSED && isFrench(languageIn(attributes));
  };
  for (const item of itemsOf(feed)) {
    result.items++;
    if (result.items > MOST_ITEMS) return { items: result.items, french: 0, tags: [] };
    if (!item.isFrench && !item.unusual.some(isFrenchElement)) continue;
    const place = findTitle(item);
    const title = place && readTitle(item.part.slice(place.start, place.end));
    if (!title) continue;
    const decision = decide(title.text);
    result.french++;
    onFrench?.(title.text, decision);
    if (decision.insert)
      result.tags.push({ at: item.offset + place.start + title.offsetOf(decision.at), insert: decision.insert });
  }
  return result;
}

/** The content of an item that has an end. */
type Item = Span & {
  /** The part of the feed that the indexes are for, and where it begins in the feed. */
  part: string;
  offset: number;
  /** Its title, if that comes first and is only text. */
  title: Span | undefined;
  /** Whether a language that is written as Prowlarr does says French. */
  isFrench: boolean;
  /** The attributes of elements for a language that are written in another way. */
  unusual: string[];
};

/** In bytes: some 80 releases. One string for a whole large feed takes 40 MiB more, and a twentieth more time. */
const PART = 128 * 1024;
/** The items of a feed, which is read part by part. */
function* itemsOf(feed: Buffer): Generator<Item> {
  let offset = 0;
  let length = PART;
  for (;;) {
    const part = feed.toString("latin1", offset, offset + length);
    const items = itemsOfPart(part, offset);
    yield* items;
    const end = items.at(-1)?.end ?? 0;
    if (end === 0 && offset + length >= feed.length) return;
    // The next part begins where the last whole item ends. Without one, this part was too short.
    offset += end;
    length = end > 0 ? PART : 2 * length;
  }
}

/** Anything up to an end. If that is missing, it goes on to the last character. */
const upTo = (end: string) => `[^]*?(?:${end}|$)`;
/** What is no markup, behind its `<`. */
const SECTIONS = [
  // <!-- a comment -->
  `!--${upTo("-->")}`,
  // <![CDATA[ text ]]>
  String.raw`!\[CDATA\[${upTo("]]>")}`,
  // <!DOCTYPE rss SYSTEM "x.dtd">, <!DOCTYPE rss [ declarations ]>
  String.raw`!DOCTYPE[^[>]*(?:\[${upTo(String.raw`\]\s*>`)}|>|$)`,
  // <?xml version="1.0"?>
  String.raw`\?${upTo(String.raw`\?>`)}`,
];
const SECTION = `(?:${SECTIONS.join("|")})`;
/** `item>`, with its title if that comes first and is only text, as Prowlarr writes it: `item> <title>Film.2019` */
const ITEM = String.raw`(item)(?:\s[^<>]*)?(?<!\/)>(?:\s*<title>([^<]*)(?=<\/title>))?`;
/** `/item>` or `/item >`, but not `/items>` */
const ITEM_END = String.raw`(\/item)[\s>]`;
/**
 * The attributes of an element, no more than a hundred. Without a limit, the engine takes seconds for a million, and
 * then finds nothing.
 */
const ATTRIBUTES = `[^<>"']*(?:(?:"[^"<]*"|'[^'<]*')[^<>"']*){0,100}`;
/**
 * How most `attr` elements go on: with another name, or with a language that has no f, which each of FRENCH_WORDS has.
 * They are passed over. That halves the time for a feed without French, and changes nothing else.
 */
const CANNOT_BE_FRENCH = String.raw`name="(?:[^lL\s]|language" value="[^"<&fF]*")`;
/**
 * `newznab:attr name="language" value="French"`, as Prowlarr writes it, or else any attributes, such as those of
 * `attr value='&#70;rench' name = 'language'`
 */
const LANGUAGE = String.raw`(?:[^\s<>/"'!?:]*:)?attr\s(?!${CANNOT_BE_FRENCH})(?:name="language" value="([^"<&]*)"|(${ATTRIBUTES}))`;
const LANDMARK = new RegExp(`<(?:${ITEM}|${ITEM_END}|${LANGUAGE}|${SECTION})`, "g");

/** In bytes, as the feed writes it. No `attr` element is longer, and no title, even in references such as `&#233;`. */
const LONGEST_TEXT = 10 * LONGEST_TITLE;
/** No item has so many languages. A hostile one must not fill the memory with them. */
const MOST_UNUSUAL = 1000;
/** The items in a part of a feed, or more than MOST_ITEMS of them. With a generator, tagFeed takes a tenth longer. */
function itemsOfPart(part: string, offset: number): Item[] {
  const items: Item[] = [];
  let item: Item | undefined;
  LANDMARK.lastIndex = 0;
  for (let landmark; items.length <= MOST_ITEMS && (landmark = LANDMARK.exec(part));) {
    // The groups of ITEM, ITEM_END and LANGUAGE, in their order.
    const { 1: itemStart, 2: title, 3: itemEnd, 4: language, 5: attributes } = landmark;
    const end = LANDMARK.lastIndex;
    if (itemStart) {
      const place = title === undefined ? undefined : { start: end - title.length, end };
      item = { part, offset, start: end, end, title: place, isFrench: false, unusual: [] };
    } else if (!item) continue;
    else if (itemEnd) {
      item.end = landmark.index;
      items.push(item);
      item = undefined;
    } else if (landmark[0].length > LONGEST_TEXT) continue;
    else if (language) item.isFrench ||= isFrench(decodeBytes(language));
    else if (attributes && /language/i.test(attributes) && item.unusual.length < MOST_UNUSUAL)
      item.unusual.push(attributes);
  }
  return items;
}

const parser = new XMLParser({ ignoreAttributes: false, attributeNamePrefix: "", htmlEntities: true });
/** The language in the attributes of an `attr` element that is not written as Prowlarr writes it, or nothing. */
function languageIn(attributes: string): string {
  try {
    const { name, value = "" } = parser.parse(`<attr ${decodeBytes(attributes)}/>`).attr as Record<string, string>;
    return name?.toLowerCase() === "language" ? value : "";
  } catch {
    // fast-xml-parser refuses attributes such as __proto__.
    return "";
  }
}

/** A start or end tag, or a section, in which nothing is a tag. */
const XML_TAG = new RegExp(String.raw`<(?:(\/?)([^\s<>/"'!?]+)(?=[\s/>])${ATTRIBUTES}>|${SECTION})`, "g");
/** Where the item's own title is: the content of the first `<title>` that is in no other element. */
function findTitle({ part, start, end, title }: Item): Span | undefined {
  if (title) return title;
  let depth = 0;
  let titleStart = 0;
  for (const { 0: tag, 1: slash, 2: name, index } of part.slice(start, end).matchAll(XML_TAG)) {
    const isSection = !name;
    if (isSection || tag.endsWith("/>")) continue;
    if (titleStart) return name === "title" && slash ? { start: titleStart, end: start + index } : undefined;
    if (slash) depth--;
    else if (name === "title" && depth === 0) titleStart = start + index + tag.length;
    else depth++;
  }
  return undefined;
}

/** A title as a client reads it, and how many bytes of it, as the feed writes it, stand before a character. */
type Title = { text: string; offsetOf(index: number): number };
/** Reads a title, one character per byte. Gives undefined if it is empty, far too long or not only text. */
function readTitle(latin1: string): Title | undefined {
  if (latin1.length > LONGEST_TEXT) return undefined;
  const written = decodeBytes(latin1);
  const decoded = decodeText(written);
  const text = decoded?.text.trim();
  if (!decoded || !text) return undefined;
  const skipped = decoded.text.indexOf(text);
  const offsetOf = (index: number) => {
    const end = placeInWritten(decoded, skipped + index);
    return written === latin1 ? end : Buffer.byteLength(written.slice(0, end));
  };
  return { text, offsetOf };
}

/** The text of bytes that were read as Latin-1. They stay as they are if they aren't valid UTF-8. */
function decodeBytes(latin1: string): string {
  if (/^[\0-\x7f]*$/.test(latin1)) return latin1;
  const bytes = Buffer.from(latin1, "latin1");
  return isUtf8(bytes) ? bytes.toString() : latin1;
}

/** A reference such as `&amp;`, a CDATA section, or a `<` that begins something else. */
const NOT_PLAIN = /&[^\s&;<>]+;|<(?:!\[CDATA\[([^]*?)\]\]>)?/g;
/** What a title says. Each piece starts at an index of the text, and is written at another, perhaps as a reference. */
type Decoded = { text: string; pieces: { start: number; writtenAt: number; reference: string }[] };
/** Decodes a title. Gives undefined if it holds anything else than text. */
function decodeText(written: string): Decoded | undefined {
  if (!written.includes("&") && !written.includes("<")) return { text: written, pieces: [] };
  const decoded: Decoded = { text: "", pieces: [] };
  const add = (text: string, writtenAt: number, reference = "") => {
    decoded.pieces.push({ start: decoded.text.length, writtenAt, reference });
    decoded.text += text;
  };
  let end = 0;
  NOT_PLAIN.lastIndex = 0;
  for (let found; (found = NOT_PLAIN.exec(written)); end = NOT_PLAIN.lastIndex) {
    const { 0: whole, 1: data, index } = found;
    if (whole === "<") return undefined;
    if (end < index) add(written.slice(end, index), end);
    if (data === undefined) add(readReference(whole), index, whole);
    else add(data, index + "<![CDATA[".length);
  }
  add(written.slice(end), end);
  return decoded;
}

/** Where a place in a title's text is written: right behind the character before it, and never within a reference. */
function placeInWritten({ pieces }: Decoded, place: number): number {
  const piece = pieces.findLast(({ start }) => start < place);
  return piece ? piece.writtenAt + (piece.reference.length || place - piece.start) : place;
}

const ENTITIES: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'" };
/** The character that a reference such as `&amp;`, `&#233;` or `&#xE9;` stands for. An unknown one stays as it is. */
function readReference(reference: string): string {
  const entity = ENTITIES[reference];
  if (entity) return entity;
  const code = Number(/^&#(x?[\da-f]+);$/i.exec(reference)?.[1]!.replace(/^x/i, "0x"));
  return code <= 0x10ffff ? String.fromCodePoint(code) : reference;
}

/** To hand over each tag, and the bytes before it, on their own takes a thirtieth of a search. */
const CHUNK = Buffer.allocUnsafeSlow(128 * 1024);
/** A feed with its tags, in chunks. The reader has to copy each chunk, because the next one overwrites it. */
export function* chunksOf(feed: Buffer, tags: Insertion[]): Generator<Uint8Array> {
  let copied = 0;
  let used = 0;
  for (const { at, insert } of tags) {
    if (used + (at - copied) + insert.length <= CHUNK.length) used += feed.copy(CHUNK, used, copied, at);
    else {
      yield CHUNK.subarray(0, used);
      yield feed.subarray(copied, at);
      used = 0;
    }
    used += CHUNK.write(insert, used, "latin1");
    copied = at;
  }
  yield CHUNK.subarray(0, used);
  yield feed.subarray(copied);
}

// ─── Proxy: a request comes in, goes to the backend, and its answer goes back ───────────────────────────────────────

/**
 * Nothing else reaches the backend. Its web page and its key stay private, also from `/api/v1/..%2f..%2f`, from a
 * backslash (%5C), and from what is encoded twice (%25).
 */
const ROUTES = /^\/(?:\d{1,9}\/(?:api|download)$|api\/v1\/(?!.*%(?:2[EeFf]|5[Cc]|25)).)/;
const SEARCH = /^\/\d{1,9}\/api$/;

const NO_ROUTE = new Problem(
  "No such route: the proxy serves /health, /<id>/api, /<id>/download and /api/v1/; ask Prowlarr itself for anything else.",
  404,
);
const NO_TUNNEL = new Problem(
  "The proxy opens no tunnels (CONNECT): take its address out of the proxy settings of your system or browser.",
  405,
);
/**
 * A header of `/health`. By it a proxy is told from other programs with the same answer, such as FlareSolverr. It is
 * not `Server`, which nginx replaces.
 */
const MARK = "x-language-tag-proxy";
/**
 * What someone sees who opens the proxy's address in a browser. Its status is 404 all the same, because a program that
 * looks for Prowlarr's page must not take this for one.
 */
const WELCOME = `This is language-tag-proxy ${version}. It runs, and there is nothing more to see here.

Its address belongs in Prowlarr: Settings → Apps → Sonarr or Radarr → Prowlarr Server.
`;

/**
 * Serves until it is stopped.
 *
 * @throws Problem if the port can't be opened
 */
export function serve(config: Config): Bun.Server<undefined> {
  try {
    return Bun.serve({
      port: config.port,
      // A search may be silent for as long as BACKEND_TIMEOUT allows, but Bun would hang up after 10 seconds.
      idleTimeout: 0,
      development: false,
      // Two proxies must not share a port: the second one has to fail.
      reusePort: false,
      // A body is passed on as it comes, so its size doesn't matter.
      maxRequestBodySize: Number.MAX_SAFE_INTEGER,
      fetch: (request, server) => handle(request, server, config),
      // Bun's own error page and log would show the URL, and with it the key.
      error: () =>
        errorResponse(new Problem("The proxy failed at this request because of a bug: please report it.", 500), false),
    });
  } catch (error) {
    throw portProblem(config.port, error as NodeJS.ErrnoException);
  }
}

function portProblem(port: number, { code }: NodeJS.ErrnoException): Problem {
  if (code === "EADDRINUSE")
    return new Problem(`Port ${port} is taken: set PORT to another one, or stop what uses it.`);
  if (code === "EACCES") return new Problem(`This user may not open port ${port}: set PORT to one above 1023.`);
  return new Problem(`Port ${port} can't be opened (${code}): set PORT to another one.`);
}

async function handle(request: Request, server: Bun.Server<undefined>, config: Config): Promise<Response> {
  const started = performance.now();
  const { path, query } = targetOf(request, config);
  if (path === "/health") return Response.json({ status: "ok" }, { headers: { [MARK]: version } });
  if (path === "/" && request.headers.get("accept")?.includes("text/html"))
    return new Response(WELCOME, { status: 404 });

  const isSearch = SEARCH.test(path);
  const described = () => describeRequest(request.method, path, isSearch ? query : "");
  const logOutcome = (outcome: string, level: keyof Log = "info") =>
    config.log[level]?.(`${described()} → ${outcome}, ${Math.round(performance.now() - started)} ms`);
  try {
    if (request.method === "CONNECT") throw NO_TUNNEL;
    if (!ROUTES.test(path)) throw NO_ROUTE;
    const response = await forward(request, server, config, path + query, isSearch);
    if (isSearch && isFeed(request, response))
      return await answerSearch(unpacked(response, config), config.log, logOutcome);
    logOutcome(String(response.status));
    const onBreak = () => {
      if (!request.signal.aborted) config.log.warn(`${described()}: the backend broke off its answer`);
    };
    return new Response(response.body && relay(response.body, { onBreak }), response);
  } catch (error) {
    const problem = request.signal.aborted ? new Problem("the client left", 499) : problemOf(error, config);
    logOutcome(`${problem.status}: ${problem.message.replace(/\.$/, "")}`, problem.status >= 500 ? "warn" : "info");
    return errorResponse(problem, isSearch);
  }
}

/** A request's path, without dot segments and without the backend's URL base, and its query with the question mark. */
function targetOf(request: Request, { urlBase }: Config): { path: string; query: string } {
  // Bun puts the client's Host before the path. That may be missing, or one that no URL can hold (nas.1). For a
  // CONNECT, nothing is left that begins with a slash.
  const rest = request.url.replace(/^https?:\/\/[^/]*/, "");
  const { pathname, href } = URL.parse(rest.startsWith("/") ? `http://proxy${rest}` : "http://proxy/")!;
  // The backend's own links begin with its URL base, which `config.backend` adds again.
  const path = pathname.startsWith(`${urlBase}/`) ? pathname.slice(urlBase.length) : pathname;
  // `search` would drop a lone question mark.
  return { path, query: /\?.*|$/.exec(href)![0] };
}

/** The start of a path that can hold no key: words and numbers. */
const PLAIN_SEGMENTS = /^(?:\/(?:[a-z]{1,20}|v1|\d{1,9})(?![^/]))*/i;
/** A request as the log shows it: its route and what it searches for. Nothing else, because that may be a key. */
function describeRequest(method: string, path: string, query: string): string {
  const shown = PLAIN_SEGMENTS.exec(path)![0];
  const route = `${method} ${shown}${shown === path ? "" : "/…"}`;
  return query ? `${route} ${describeSearch(new URLSearchParams(query))}` : route;
}

/** What a client may search by instead of text. */
const SEARCH_FIELDS = words("tvdbid imdbid tmdbid tvmazeid rid traktid doubanid year");
/** The text of a search, up to what may be a key: a client that encodes its query twice has its key in the text. */
const SEARCH_TEXT = /^(?:(?![%=]|:\/\/|[\da-f]{32}|(?:x[-_]?)?api[-_]?key|passkey|token).){1,200}/is;
/** `tvsearch "les revenants" S01E02`, `movie imdbid=tt0111161`, `tvsearch latest` for an RSS sync, `caps`. */
function describeSearch(parameters: URLSearchParams): string {
  const value = (name: string, form: RegExp) => form.exec(parameters.get(name) ?? "")?.[0] ?? "";
  const type = value("t", /^(?:caps|search|tvsearch|movie|music|book)$/);
  const text = value("q", SEARCH_TEXT);
  const ids = SEARCH_FIELDS.map((name) => {
    const id = value(name, /^(?:tt)?\d{1,10}$/);
    return id && `${name}=${id}`;
  });
  const season = value("season", /^\d{1,4}$/);
  const episode = value("ep", /^\d{1,4}$|^\d\d\/\d\d$/);
  const episodes = (season && `S${season.padStart(2, "0")}`) + (episode && `E${episode.padStart(2, "0")}`);
  const what = [text && JSON.stringify(text), ...ids, episodes].filter(Boolean).join(" ");
  return [type, what || (type === "caps" ? "" : "latest")].filter(Boolean).join(" ");
}

/** Redirects are for the client to follow. The backend is on the home network: HTTP_PROXY is not meant for it. */
const DIRECT = { redirect: "manual", proxy: false } as const;
/** Names this very proxy in a `Via` header (RFC 9110, §7.6.3), so that a request that comes back is noticed. */
const VIA = `language-tag-proxy-${crypto.randomUUID()}`;
const LOOP = new Problem("BACKEND_URL is the proxy's own address: set it to Prowlarr's.", 508);
/** Sends the request on to the backend. */
async function forward(
  request: Request,
  server: Bun.Server<undefined>,
  config: Config,
  target: string,
  isSearch: boolean,
): Promise<Response> {
  if (request.headers.get("via")?.includes(VIA)) throw LOOP;
  // Unlike AbortSignal.timeout, this begins when the client has sent its whole request, and is called off by an answer.
  const slow = new AbortController();
  let timer: Timer | undefined;
  let hasAnswered = false;
  const startTimer = () => {
    if (!hasAnswered) timer = setTimeout(() => slow.abort(new DOMException("", "TimeoutError")), config.timeout);
  };
  const body = request.body && relay(request.body, { onEnd: startTimer });
  if (!body) startTimer();
  try {
    const response = await fetch(config.backend + target, {
      method: request.method,
      headers: forwardedHeaders(request, server, config, isSearch),
      body,
      signal: AbortSignal.any([request.signal, slow.signal]),
      ...DIRECT,
      decompress: false,
      // An answer that has begun may take as long as its client waits: Prowlarr streams whatever the indexer sends.
      timeout: false,
      // If the backend has closed a kept connection meanwhile, Bun asks again on a new one, but never with a body.
      keepalive: request.method === "GET" || request.method === "HEAD",
    });
    if (response.status < 200 || response.status > 599)
      throw new Problem(
        `${config.backend} answered with status ${response.status}, which HTTP does not have: see its log.`,
      );
    removeHopByHop(response.headers);
    return response;
  } finally {
    hasAnswered = true;
    clearTimeout(timer);
  }
}

function forwardedHeaders(
  request: Request,
  server: Bun.Server<undefined>,
  { authorization }: Config,
  isSearch: boolean,
): Headers {
  const headers = new Headers(request.headers);
  const host = headers.get("host");
  const address = server.requestIP(request)?.address.replace(/^::ffff:/, "");
  removeHopByHop(headers);
  headers.delete("host");
  headers.append("via", `1.1 ${VIA}`);
  if (address) headers.append("x-forwarded-for", address);
  // Prowlarr builds the feed's download links from these two, so that a download comes back through the proxy.
  if (host && !headers.has("x-forwarded-host")) headers.set("x-forwarded-host", host);
  if (!headers.has("x-forwarded-proto")) headers.set("x-forwarded-proto", "http");
  if (authorization && !headers.has("authorization")) headers.set("authorization", authorization);
  // The feed has to be unpacked. Of what the clients accept, this is all that DecompressionStream undoes.
  if (isSearch) headers.set("accept-encoding", "gzip");
  // Bun adds its own where one is missing. Prowlarr tells its clients apart by User-Agent.
  for (const name of ["user-agent", "accept"]) if (!headers.has(name)) headers.set(name, "");
  return headers;
}

const HOP_BY_HOP = words(
  "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer upgrade expect",
);
/**
 * Removes hop-by-hop headers (RFC 9110, §7.6.1), those that `Connection` names, and Expect, which Bun answers itself.
 * Transfer-Encoding is left to Bun, which sets it as each side needs it. Without it in a response, Bun would add a
 * Content-Length of 0 to the answer to a HEAD.
 */
function removeHopByHop(headers: Headers): void {
  const named = headers.get("connection")?.match(/[\w!#$%&'*+.^`|~-]+/g) ?? [];
  for (const name of [...HOP_BY_HOP, ...named]) headers.delete(name);
}

/**
 * Passes a body on, and tells when it has ended or broken off. Bun would print the error of a body that breaks off,
 * with the URL and its key, but not through a generator.
 */
async function* relay(
  body: ReadableStream<Uint8Array>,
  { onEnd, onBreak }: { onEnd?: () => void; onBreak?: () => void },
): AsyncGenerator<Uint8Array> {
  try {
    yield* body;
    onEnd?.();
  } catch (error) {
    onBreak?.();
    throw error;
  }
}

/** A feed without its Content-Encoding. An unknown one is refused before the body is read. */
function unpacked(response: Response, { backend }: Config): Response {
  const { status, statusText, headers, body } = response;
  const encodings = words((headers.get("content-encoding") ?? "").toLowerCase().replaceAll(",", " ").trim());
  const [encoding = "", ...others] = encodings.filter((name) => name && name !== "identity");
  headers.delete("content-encoding");
  if (!encoding) return response;
  const format = ({ gzip: "gzip", "x-gzip": "gzip", deflate: "deflate" } as const)[encoding];
  if (!format || others.length > 0) {
    body?.cancel();
    throw new Problem(`${backend} packed its answer with ${encodings.join(", ")}: the proxy asked for gzip.`);
  }
  // It is the packed length. `readWhole` must count.
  headers.delete("content-length");
  return new Response(body?.pipeThrough(new DecompressionStream(format)), { status, statusText, headers });
}

function isFeed(request: Request, response: Response): boolean {
  const type = response.headers.get("content-type") ?? "";
  return response.status === 200 && request.method !== "HEAD" && /^[^;]*[/+]xml\b/i.test(type);
}

/** Headers that describe the very bytes of a body: they are no longer true of a tagged one. */
const BODY_HEADERS = words("etag content-md5 digest content-digest repr-digest accept-ranges");
/**
 * A search response, read to its end and tagged. In the log, its titles stand below the line of its request, which says
 * how many there are.
 */
async function answerSearch(response: Response, log: Log, logOutcome: (outcome: string) => void): Promise<Response> {
  const feed = await readWhole(response, LARGEST_FEED, LARGE_FEED);
  const titles: string[] = [];
  const keepTitle = (title: string, decision: Decision) => void titles.push(describeTitle(title, decision));
  const { items, tags } = tagFeed(new Uint8Array(feed), log.debug && keepTitle);
  logOutcome(`200, ${items} items, ${tags.length} tagged`);
  if (items > MOST_ITEMS) log.warn(`A feed has more than ${MOST_ITEMS} items, so it is passed on without tags.`);
  else for (const line of titles) log.debug?.(line);

  const { headers } = response;
  headers.delete("content-length");
  if (tags.length > 0) for (const name of BODY_HEADERS) headers.delete(name);
  return new Response(streamOf(feed, tags), { headers });
}

function describeTitle(title: string, decision: Decision): string {
  if (!decision.insert) return `  ${title} stays: ${decision.reason}`;
  return `  ${title} → ${apply(title, decision)} (${decision.reason})`;
}

/**
 * Bun 1.4.5 collects garbage when there is more of it than of live data, and counts the feeds' buffers as such
 * (oven-sh/bun#42979). The proxy has next to no live data, so this would be every 14 searches. With this buffer it is
 * every 26. The buffer takes no memory, because nobody touches it. It is exported only to be kept.
 */
export const BALLAST = new ArrayBuffer(6 * 1024 * 1024);
/** A feed with its tags as a body. Nobody else may have the feed's buffer: it is freed for the next search. */
function streamOf(feed: ArrayBuffer, tags: Insertion[]): ReadableStream {
  const source: Bun.DirectUnderlyingSource = {
    type: "direct",
    async pull(controller) {
      for (const chunk of chunksOf(Buffer.from(feed), tags)) controller.write(chunk);
      // `write` has copied the chunks.
      feed.transfer(0);
      // At `end` alone, SIGTERM would not wait until a slow client has read it all.
      await controller.flush(true);
      controller.end();
    },
  };
  // Bun 1.4.5 sends a direct stream in pieces of this size, and any other body of an async handler in many small ones,
  // which takes half as long again.
  return new ReadableStream(source as any, { highWaterMark: 256 * 1024 });
}

/** In bytes. 100 releases are 160 KiB, and 5,000 are 8 MiB. */
const LARGEST_FEED = 32 * 1024 * 1024;
const LARGE_FEED = new Problem(`The feed is larger than ${LARGEST_FEED >> 20} MiB: search for less at a time.`);
/**
 * The whole body of an answer, in a buffer that is nobody else's.
 *
 * @param most in bytes
 * @throws tooLarge
 */
async function readWhole(response: Response, most: number, tooLarge: Problem): Promise<ArrayBuffer> {
  const length = Number(response.headers.get("content-length"));
  if (length > most) {
    await response.body?.cancel();
    throw tooLarge;
  }
  // Where chunks are sent as well, the length counts for nothing (RFC 9112, §6.3).
  if (length && !response.headers.has("transfer-encoding")) return await response.arrayBuffer();
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of response.body ?? []) {
    size += chunk.length;
    if (size > most) throw tooLarge;
    chunks.push(chunk);
  }
  return Bun.concatArrayBuffers(chunks);
}

/** What a failed request to the backend means for the user. */
function problemOf(error: unknown, { backend, timeout }: Pick<Config, "backend" | "timeout">): Problem {
  if (error instanceof Problem) return error;
  const { name, code = "" } = error as NodeJS.ErrnoException;
  if (name === "TimeoutError")
    return new Problem(
      `${backend} gave no answer within ${timeout / 1000} s: see its log, or raise BACKEND_TIMEOUT.`,
      504,
    );
  if (/REFUSED|NOTFOUND|UNREACH|TIMEDOUT|EAI_/.test(code)) {
    const hint = isLocal(backend) ? " In a container, that address is the container itself." : "";
    return new Problem(`${backend} can't be reached: check that it runs, and that BACKEND_URL is its address.${hint}`);
  }
  if (code === "EPROTO") return new Problem(`${backend} does not speak https: write http:// in BACKEND_URL.`);
  if (/CERT|SIGNATURE/.test(code))
    return new Problem(
      `The certificate of ${backend} is not trusted (${code}): use the host name in the certificate, or set NODE_EXTRA_CA_CERTS to its authority's file.`,
    );
  return new Problem(`The answer from ${backend} broke off or was not HTTP${code && ` (${code})`}: try again.`);
}

/** Whether an address is localhost, which is another system for each program that asks it. */
function isLocal(address: string): boolean {
  return /^https?:\/\/(?:localhost|127\.|\[::1\])/.test(address);
}

/** The answer to a failed request: JSON, or for a search an indexer's error document, because the client shows that. */
function errorResponse({ status, message }: Problem, isSearch: boolean): Response {
  if (!isSearch) return Response.json({ error: message }, { status });
  const error = `<error code="900" description="${Bun.escapeHTML(message)}"/>`;
  const headers = { "content-type": "application/rss+xml; charset=utf-8" };
  return new Response(`<?xml version="1.0" encoding="UTF-8"?>\n${error}\n`, { status, headers });
}

// ─── Check: the whole way from Sonarr and Radarr to each indexer ────────────────────────────────────────────────────
//
// `--check` looks at an installed proxy in three steps. It asks Prowlarr, Sonarr and Radarr through their own APIs, and
// changes no setting in any of them. It judges what they answered: those functions are pure. And it prints the lines,
// in the order in which to act on them. `--indexers` does the same for Prowlarr's indexers alone.

/** What the check knows once it has asked. */
export type World = Pick<Config, "port" | "backend"> & {
  /** Who answers on that port. */
  own: Who;
  /** Whether Prowlarr answers by way of that port. */
  reachesProwlarr: boolean;
  prowlarr: Asked<{ version: string; clients: Client[]; indexers: Indexer[] }>;
};
/** What was asked for, or why it can't be had. A fault in one place costs one line, not the rest of the check. */
type Asked<Fact> = Fact | Problem;
/** Who answers at an address: a proxy like this one, something else, nobody, or that can't be told from here. */
type Who = "proxy" | "other" | "nobody" | "unknown";
type Server = { address: string; who: Who };

/** A Sonarr or Radarr, as Prowlarr's settings under Apps describe it. */
export type Client = {
  name: string;
  kind: "Sonarr" | "Radarr";
  /** Where Prowlarr reaches it, or empty. */
  address: string;
  /** "Prowlarr Server", the address that Prowlarr writes into the client's indexers, or empty. */
  server: Server;
  /** Whether Prowlarr overwrites its indexers' settings in the client. */
  isFullSync: boolean;
  api: Asked<ClientApi> | "no key" | "key refused" | "wrong address";
};
/** What a client says of itself. */
export type ClientApi = {
  version: string;
  profiles: Profile[];
  /** The indexers in use that Prowlarr gave it, with their number there. */
  indexers: { id: number; name: string; server: Server; prowlarrId: number }[];
  /** Why an indexer, by its number, failed in the client's own test. Empty if it did not. */
  tests: Map<number, string> | "not asked" | "no result";
};
/** A quality profile. */
export type Profile = {
  name: string;
  /** Whether a series or movie has it. */
  isUsed: boolean;
  upgradeAllowed: boolean;
  /** "Upgrade Until Custom Format Score" and "Minimum Custom Format Score" */
  cutoff: number;
  minimum: number;
  /** "Minimum Custom Format Score Increment". Versions before the end of 2024 don't have it. */
  increment: number | undefined;
  /** Radarr's alone, or empty. */
  language: string;
  scores: Sample<number>[];
};
/** The custom formats, or their points, of a release with the tag, of one without, and of the file that comes of it. */
type Sample<Thing> = { tagged: Thing; untagged: Thing; file: Thing };
/** An enabled indexer of Prowlarr's: its latest releases, and how many report a language, are French, get the tag. */
export type Indexer = { id: number; name: string; latest: Asked<Latest> };
type Latest = { items: number; reported: number; french: number; tagged: number };

// Asking: everybody at once, and nobody twice for the same.

/** What the functions that ask go by. */
type Asking = Config & {
  own: Who;
  reachesProwlarr: Promise<boolean>;
  serverAt: (address: string) => Promise<Server>;
};

async function askAll(config: Config): Promise<World> {
  const { port, backend } = config;
  const here = `http://127.0.0.1:${port}`;
  const own = await whoAnswers(here);
  const servers = new Map<string, Promise<Server>>();
  const serverAt = (address: string) => servers.getOrInsertComputed(address, () => findServer(address, own, config));
  // Only a proxy gets to see Prowlarr's key.
  const there = own === "proxy" ? askProwlarrApi({ ...config, backend: here }, "system/status") : Promise.reject();
  const reachesProwlarr = there.then(Boolean, () => false);
  const asking = { ...config, own, reachesProwlarr, serverAt };
  const prowlarr = await askProwlarr(asking).catch((error) => prowlarrProblem(error, config));
  return { port, backend, own, reachesProwlarr: await reachesProwlarr, prowlarr };
}

/** Who answers at an address in the settings of Prowlarr or a client, as far as that can be told from here. */
async function findServer(address: string, own: Who, { port, backend }: Config): Promise<Server> {
  if (!address) return { address, who: "other" };
  const who = await whoAnswers(address);
  if (who === "proxy") return { address, who };
  const portOf = (url: string) => URL.parse(url)?.port;
  // With Prowlarr's own port it is Prowlarr, perhaps by a name that only the client knows.
  if (portOf(address) && portOf(address) === portOf(backend)) return { address, who: "other" };
  // On the proxy's own port the proxy may run later.
  const isProxyToBe = own !== "proxy" && portOf(address) === String(port);
  // In a container, localhost is another system than here.
  const isElsewhere = who === "nobody" && isLocal(address);
  return { address, who: isProxyToBe || isElsewhere ? "unknown" : who };
}

/** Who answers at an address. */
async function whoAnswers(address: string): Promise<Who> {
  try {
    const { headers } = await ask(`${address}/health`, { timeout: 5000 });
    return headers.has(MARK) ? "proxy" : "other";
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ECONNREFUSED") return "nobody";
    return error instanceof Problem || code === "Malformed_HTTP_Response" ? "other" : "unknown";
  }
}

async function askProwlarr(asking: Asking): Promise<World["prowlarr"]> {
  const { who } = await asking.serverAt(asking.backend);
  if (who === "proxy") throw LOOP;
  const [{ version }, indexers, clients] = await Promise.all([
    askProwlarrApi(asking, "system/status"),
    askIndexers(asking),
    askClients(asking),
  ]);
  return { version: text(version), clients, indexers };
}

async function askClients(asking: Asking): Promise<Client[]> {
  const applications: any[] = await askProwlarrApi(asking, "applications");
  const ours = applications.filter(({ implementation }) => ["Sonarr", "Radarr"].includes(implementation));
  return await Promise.all(ours.map((application) => askClient(application, asking)));
}

async function askClient(application: any, asking: Asking): Promise<Client> {
  const client: Client = {
    name: text(application.name),
    kind: application.implementation,
    address: addressIn(application, "baseUrl"),
    server: await asking.serverAt(addressIn(application, "prowlarrUrl")),
    isFullSync: application.syncLevel === "fullSync",
    api: "no key",
  };
  client.api = await askWithKeys(client, asking).catch((error) => clientProblem(error, client));
  return client;
}

/** Asks for a resource of a client's API. */
type Api = (resource: string, more?: Partial<Question>) => Promise<any>;

/** Reads a client's API with the first of the keys for its kind that it accepts. */
async function askWithKeys({ kind, address }: Client, asking: Asking): Promise<Client["api"]> {
  const { timeout, clientKeys } = asking;
  if (!address) return "wrong address";
  for (const key of clientKeys[kind]) {
    const question = { headers: { "x-api-key": key }, timeout };
    const { status, body } = await ask(`${address}/api/v3/system/status`, question);
    if (status === 401) continue;
    if (status === 503) throw new Problem(`${address} is still starting: try again in a minute.`);
    const version = parseJson(body)?.version;
    if (status !== 200 || !version) return "wrong address";
    const api: Api = (resource, more) => askClientApi(address, resource, { ...question, ...more });
    return await askFacts(kind, text(version), api, asking);
  }
  return clientKeys[kind].length > 0 ? "key refused" : "no key";
}

async function askFacts(kind: Client["kind"], version: string, api: Api, asking: Asking): Promise<ClientApi> {
  const [works, profiles, indexers]: [any[], any[], ClientApi["indexers"]] = await Promise.all([
    api(kind === "Radarr" ? "movie" : "series"),
    api("qualityprofile"),
    askClientIndexers(api, asking),
  ]);
  const [samples, tests] = await Promise.all([
    askSamples(kind, works, api),
    askTests(indexers, api, asking).catch(() => "no result" as const),
  ]);
  return { version, profiles: profiles.map((profile) => readProfile(profile, works, samples)), indexers, tests };
}

/** @param samples the numbers of their custom formats */
function readProfile(profile: any, works: any[], samples: Sample<number[]>[]): Profile {
  const items: any[] = profile.formatItems;
  const score = (formats: number[]) =>
    items.reduce((sum, item) => sum + (formats.includes(item.format) ? number(item.score) : 0), 0);
  const increment = profile.minUpgradeFormatScore;
  return {
    name: text(profile.name),
    isUsed: works.some(({ qualityProfileId }) => qualityProfileId === profile.id),
    upgradeAllowed: profile.upgradeAllowed === true,
    cutoff: number(profile.cutoffFormatScore),
    minimum: number(profile.minFormatScore),
    increment: increment === undefined ? undefined : number(increment),
    language: text(profile.language?.name ?? ""),
    scores: samples.map((sample) => ({
      tagged: score(sample.tagged),
      untagged: score(sample.untagged),
      file: score(sample.file),
    })),
  };
}

/**
 * Lets the client judge titles of one of the user's own series or movies. To the client, a file with French audio is
 * FRENCH by its tracks, with or without a tag. One of the two samples names the original language, because formats such
 * as TRaSH's "Language: Original + French" compare with it.
 */
async function askSamples(kind: Client["kind"], works: any[], api: Api): Promise<Sample<number[]>[]> {
  const work = works.find(
    // What is only announced may have no year, and the client can't read a title without one.
    ({ year, originalLanguage: language }) => year !== 0 && language && !/^(?:Unknown|French)$/.test(language.name),
  );
  const { title, year } = work ?? { title: "Name", year: 2019 };
  const start = `${text(title)} ${kind === "Radarr" ? number(year) : "S01E01"}`;
  const formatsOf = async (words: string): Promise<number[]> => {
    const dotted = `${start} ${words} 1080p WEB H264`.replace(/[^\p{L}\p{N}]+/gu, ".");
    const { customFormats } = await api(`parse?title=${encodeURIComponent(`${dotted}-GRP`)}`);
    return (customFormats ?? []).map(({ id }: any) => number(id));
  };
  const languages = work ? [text(work.originalLanguage.name), ""] : [""];
  const samples = languages.map(async (language) => ({
    tagged: await formatsOf(`${TAG} ${language}`),
    untagged: await formatsOf(language),
    file: await formatsOf(`FRENCH ${language}`),
  }));
  return await Promise.all(samples);
}

/** The indexers that a client asks, and that Prowlarr gave it: their address ends in a number. */
async function askClientIndexers(api: Api, { serverAt }: Asking): Promise<ClientApi["indexers"]> {
  const uses = ["enableRss", "enableAutomaticSearch", "enableInteractiveSearch"];
  const indexers: any[] = await api("indexer");
  const ours = indexers.map(async (indexer) => {
    const [, server, prowlarrId] = /^(.*)\/(\d+)$/.exec(addressIn(indexer, "baseUrl")) ?? [];
    if (!server || !uses.some((use) => indexer[use] === true)) return [];
    const { id, name } = indexer;
    return { id: number(id), name: text(name), server: await serverAt(server), prowlarrId: Number(prowlarrId) };
  });
  return (await Promise.all(ours)).flat();
}

/** Lets a client test its indexers. If they are known not to answer, it is not asked: it would put them on hold. */
async function askTests(indexers: ClientApi["indexers"], api: Api, asking: Asking): Promise<ClientApi["tests"]> {
  const { own, reachesProwlarr, timeout } = asking;
  const mayAnswer = ({ who }: Server) => who === "proxy" || (who === "unknown" && own === "proxy");
  if (indexers.length === 0 || !indexers.every(({ server }) => mayAnswer(server))) return "not asked";
  if (own === "proxy" && !(await reachesProwlarr)) return "not asked";
  // The client asks its indexers one after the other, so this may take ten times as long as anything else.
  const tests: any[] = await api("indexer/testall", { method: "POST", timeout: 10 * timeout });
  const reasonOf = (failures: any[]) => failures.map(({ errorMessage }) => withoutSecrets(errorMessage)).join(" ");
  // With its number in it, each indexer would have a reason of its own.
  const alike = (reason: string) => reason.replace(/\/\d+\/api\b/g, "/…/api");
  const why = ({ validationFailures }: any) => text(alike(reasonOf(validationFailures))) || "its log says why.";
  return new Map(tests.map((test) => [number(test.id), test.isValid === true ? "" : why(test)]));
}

/** A client's own words without what looks like a key or password: in a URL, in JSON or in a header. */
function withoutSecrets(words: string): string {
  const named =
    /([\w-]*(?:key|auth|pass\w*|token|secret)["']?(?:\s*[=:]\s*|%3D)["']?|[?&]r=|(?:Bearer|Basic)\s+)(?:[^&\s"'%]|%(?!26))+/gi;
  return words.replace(named, "$1…").replace(/\/\/[^/\s@]+@/g, "//…@");
}

/** Asks Prowlarr's enabled indexers for their latest releases. */
async function askIndexers(config: Config): Promise<Indexer[]> {
  const indexers: any[] = await askProwlarrApi(config, "indexer");
  const enabled = indexers.filter(({ enable }) => enable);
  const asked = enabled.map(async ({ id, name }) => ({
    id: number(id),
    name: text(name),
    latest: await askLatest(number(id), config).catch((error) => prowlarrProblem(error, config)),
  }));
  return await Promise.all(asked);
}

/** A `language` attribute, whatever it says. */
const LANGUAGE_ATTRIBUTE = /<(?:[^\s<>]*:)?attr\s[^<>]*["']\s*language\s*["']/i;
async function askLatest(id: number, config: Config): Promise<Latest> {
  const { status, body } = await askBackend(config, `/${id}/api?t=search`);
  if (status !== 200) throw new Problem(`Prowlarr answers ${status}: its log says why`);
  const { items, french, tags } = tagFeed(body);
  const parts = body.toString("latin1").split("</item");
  const reported = parts.filter((part) => LANGUAGE_ATTRIBUTE.test(part)).length;
  return { items, reported, french, tagged: tags.length };
}

/**
 * A text in an answer, without keys: Prowlarr, Sonarr and Radarr make them of 32 hex digits. A long one is cut. Where
 * there is none, this throws, and the whole answer is an odd one (`oddAnswer`).
 */
function text(value: unknown): string {
  if (typeof value !== "string") throw new TypeError("not a text");
  const safe = value.replace(/(?:[\da-f]-?){32,}/gi, "…");
  return safe.length > 300 ? `${safe.slice(0, 300)}…` : safe;
}

/** A number in an answer. It throws likewise. */
function number(value: unknown): number {
  if (typeof value !== "number") throw new TypeError("not a number");
  return value;
}

/** An address in the settings of an application or indexer, without credentials and a final slash, or empty. */
function addressIn({ fields }: { fields: any[] }, name: string): string {
  const url = URL.parse(text(fields.find((field) => field.name === name)?.value ?? ""));
  return url?.protocol.startsWith("http") ? (url.origin + url.pathname).replace(/\/+$/, "") : "";
}

/** @param most how many bytes may come */
type Question = { method?: "POST"; headers?: Record<string, string>; timeout: number; most?: number };
/** In bytes. 10,000 movies are 60 MiB. */
const LARGEST_ANSWER = 128 * 1024 * 1024;
/**
 * Asks, and reads the whole answer. It must not be packed, because it could have any size once it is unpacked.
 *
 * @throws Problem for an answer that is too large, or what `fetch` throws if there is none
 */
async function ask(url: string, { timeout, headers, most = LARGEST_ANSWER, ...rest }: Question) {
  const request = { ...DIRECT, ...rest, headers: { ...headers, "accept-encoding": "identity" }, decompress: false };
  const response = await fetch(url, { ...request, signal: AbortSignal.timeout(timeout) });
  const tooLarge = new Problem(`${new URL(url).origin} answers more than ${most >> 20} MiB: see its log.`);
  const body = Buffer.from(await readWhole(response, most, tooLarge));
  return { status: response.status, headers: response.headers, body };
}

/** What a body says, or undefined if it is not JSON. */
function parseJson(body: Buffer): any {
  try {
    return JSON.parse(body.toString());
  } catch {
    return undefined;
  }
}

/** Asks Prowlarr with BACKEND_API_KEY. */
async function askBackend({ backend, apiKey, authorization, timeout }: Config, target: string) {
  const headers = { "x-api-key": apiKey, ...(authorization && { authorization }) };
  return await ask(backend + target, { headers, timeout, most: LARGEST_FEED });
}

/**
 * Asks Prowlarr's own API.
 *
 * @throws Problem for an answer that isn't Prowlarr's, or what `fetch` throws if there is none
 */
async function askProwlarrApi(config: Config, resource: "system/status" | "applications" | "indexer"): Promise<any> {
  const { backend, apiKey } = config;
  const copyKey = "copy the key from Prowlarr → Settings → General.";
  if (!apiKey) throw new Problem(`BACKEND_API_KEY is not set, so this ends here: ${copyKey}`);
  const { status, body } = await askBackend(config, `/api/v1/${resource}`);
  if (status === 401)
    throw new Problem(`${backend} refuses BACKEND_API_KEY: see that this is Prowlarr's address, and ${copyKey}`);
  if (status === 503) throw new Problem("Prowlarr is still starting: try again in a minute.");
  if (status === 508) throw LOOP;
  const answer = parseJson(body);
  const isProwlarr = resource === "system/status" ? answer?.appName === "Prowlarr" : Array.isArray(answer);
  if (status === 200 && isProwlarr) return answer;
  throw new Problem(
    `${backend} answers (${status}), but not as Prowlarr does: set BACKEND_URL to Prowlarr's address, with its URL base.`,
  );
}

/** Asks a Sonarr's or Radarr's API. */
async function askClientApi(address: string, resource: string, question: Question): Promise<any> {
  const { status, body } = await ask(`${address}/api/v3/${resource}`, question);
  const answer = parseJson(body);
  // A test that finds a fault has status 400, and says in a list what it is.
  if (answer && (status === 200 || (status === 400 && Array.isArray(answer)))) return answer;
  throw new Problem(`${address} answers ${status} to ${resource.replace(/\?.*/, "")}: see its log.`);
}

/** What an answer is that has not the fields that it should have. */
const oddAnswer = (address: string) =>
  new Problem(`the answer from ${address} is not one that this check understands: update both.`);

/** Why Prowlarr can't be asked, or its answer not be read. */
function prowlarrProblem(error: unknown, config: Config): Problem {
  const { name, code } = error as NodeJS.ErrnoException;
  if (name === "TimeoutError")
    return new Problem(`${config.backend} gave no answer within ${config.timeout / 1000} s.`);
  return error instanceof Problem || code ? problemOf(error, config) : oddAnswer(config.backend);
}

/** Why a client can't be asked, or its answer not be read. */
function clientProblem(error: unknown, client: Client): Problem {
  if (error instanceof Problem) return error;
  const { address, kind } = client;
  const { name, code } = error as NodeJS.ErrnoException;
  if (!code) return oddAnswer(address);
  const where = `"${kind} Server" (Prowlarr → Settings → Apps → ${client.name})`;
  const container = "In a container, localhost is the container itself, and another one's name may be unknown";
  const isContainers = code === "ENOTFOUND" || (code === "ECONNREFUSED" && isLocal(address));
  const hint = isContainers ? ` ${container}: write its address on your network in ${where}.` : "";
  // The code of a timeout is a number.
  const reason = typeof code === "string" ? code : name;
  return new Problem(`${address} gives no answer here (${reason}), so the check can't see its settings.${hint}`);
}

// Judging: from what the check knows to its lines. ✓ is right, ✗ says what to do, ? can't be seen from here.

/** What a client says of itself, if it could be asked. */
function factsOf({ api }: Client): ClientApi | undefined {
  return typeof api === "string" || api instanceof Problem ? undefined : api;
}

function reportsLanguages({ latest }: Indexer): boolean {
  return !(latest instanceof Problem) && latest.reported > 0;
}

/** The lines of the check, in the order in which to act on them. */
export function* judge(world: World): Generator<string> {
  const { backend, prowlarr } = world;
  yield judgeProxy(world);
  if (prowlarr instanceof Problem) return yield `✗ ${prowlarr.message}`;
  const { version, clients, indexers } = prowlarr;
  yield `✓ Prowlarr ${version} at ${backend} accepts BACKEND_API_KEY.`;
  if (indexers.length === 0) yield NO_INDEXER;
  if (clients.length === 0)
    yield "✗ Prowlarr has no Sonarr or Radarr: add them under Settings → Apps, with Prowlarr's own address for now.";
  // First all profiles, because Sync App Indexers connects every client at once.
  for (const client of clients) yield* judgeSettings(client, clients);
  for (const client of clients) yield* judgeWay(client);
  for (const client of clients) yield* judgeChoice(client, indexers);
  if (indexers.length > 0) yield* judgeIndexers(indexers);
}

function judgeProxy({ port, own, reachesProwlarr, prowlarr }: World): string {
  if (own === "other")
    return `✗ Something else answers on port ${port}, not the proxy: set PORT to the proxy's port, or find that program with "sudo ss -ltnp" and stop it.`;
  if (own !== "proxy")
    return `✗ No proxy answers on port ${port}: start it (if it ends at once, its log says why), or set PORT to its port.`;
  if (!reachesProwlarr && !(prowlarr instanceof Problem))
    return `✗ The proxy on port ${port} does not reach Prowlarr, but this check does: its BACKEND_URL is another one, or it needs a restart after a change.`;
  return `✓ The proxy answers on port ${port}.`;
}

function* judgeSettings(client: Client, clients: Client[]): Generator<string> {
  const { name, kind, address, api } = client;
  if (api instanceof Problem) return yield `? ${name}: ${api.message}`;
  if (typeof api !== "string") return yield* judgeProfiles(client, api);
  const variable = `${kind.toUpperCase()}_API_KEY`;
  const isAlone = clients.filter((client) => client.kind === kind).length === 1;
  const comma = isAlone ? "" : ", with a comma between it and the other's";
  const copy = `copy its key from ${kind} → Settings → General into ${variable}${comma}.`;
  const server = `set "${kind} Server" to its address, with its URL base (Prowlarr → Settings → Apps → ${name}).`;
  if (api === "no key") yield `✗ ${name}: the check can't see whom it asks, nor what the tag brings there: ${copy}`;
  else if (api === "key refused")
    yield `✗ ${name}: ${address} refuses ${variable}: if that is its address (Prowlarr → Settings → Apps), ${copy}`;
  else yield `✗ ${name}: ${address ? `${address} is not a ${kind}` : "Prowlarr has no address for it"}: ${server}`;
}

const INCREMENT = "Minimum Custom Format Score Increment";

function* judgeProfiles(client: Client, { profiles }: ClientApi): Generator<string> {
  const used = profiles.filter(({ isUsed }) => isUsed);
  // In an empty library, each may come into use.
  const judged = used.length > 0 ? used : profiles;
  const without = judged.filter((profile) => pointsIn(profile) <= 0).map(({ name }) => `"${name}"`);
  if (without.length > 0) {
    const where = `${client.name}, profile${without.length > 1 ? "s" : ""} ${without.join(", ")}`;
    yield `✗ ${where}: the tag brings no points: import TRaSH Guides' custom format VFF, give it a score there, such as 1800, and set ${INCREMENT} to one more, such as 1801 (Settings → Profiles).`;
  }
  for (const profile of judged) {
    if (pointsIn(profile) > 0) yield judgePoints(client, profile);
    yield* judgeLanguage(client, profile);
  }
}

/** What the tag brings at the most. */
function pointsIn({ scores }: Profile): number {
  return Math.max(...scores.map(({ tagged, untagged }) => tagged - untagged));
}

/**
 * Judges whether the client would download a release again for what the tag brings in a profile.
 *
 * The tag is in the search result and not in the file. So once it has the file, the client may find that the very same
 * release has more points. It downloads that again if the gain is at least the increment, and the file is below the
 * cutoff (UpgradableSpecification, in both; tried in Sonarr 5 and Radarr 6).
 */
function judgePoints({ name, kind }: Client, profile: Profile): string {
  const { scores, upgradeAllowed, increment, cutoff, minimum } = profile;
  const points = pointsIn(profile) === 1 ? "1 point" : `${pointsIn(profile)} points`;
  const brings = `${name}, profile "${profile.name}": the tag brings ${points}`;
  const isRefused = scores.every(({ untagged }) => untagged < minimum);
  const refused = isRefused ? ` Releases below ${minimum} points are refused.` : "";
  // From the cutoff on, a file is not replaced.
  const lost = Math.max(...scores.filter(({ file }) => file < cutoff).map(({ tagged, file }) => tagged - file));
  if (!upgradeAllowed || lost < Math.max(increment ?? 1, 1))
    return `✓ ${brings}, and no release is downloaded twice for them.${refused}`;
  const again = `or the same release is downloaded again and again, because its file has ${lost} fewer.${refused}`;
  if (increment === undefined) return `✗ ${brings}, and this ${kind} has no ${INCREMENT}: update it, ${again}`;
  return `✗ ${brings}: set ${INCREMENT} to ${lost + 1} (now ${increment}), ${again}`;
}

/** An indexer that reports French alone makes the release French alone, whatever its original language is. */
function* judgeLanguage(client: Client, { name, language }: Profile): Generator<string> {
  if (["", "Any", "French"].includes(language)) return;
  const change = `set Language to French, or to Any if your custom formats sort the languages (now ${language})`;
  yield `✗ ${client.name}, profile "${name}": ${change}, or a release that its indexer calls French alone is rejected.`;
}

/** What to set for a client in Prowlarr. */
const inApps = (settings: string, name: string) =>
  `set ${settings} (Prowlarr → Settings → Apps → ${name}), then press Sync App Indexers.`;

/** What is wrong with "Prowlarr Server", or nothing. What can't be reached from here may be right. */
function judgeServer({ name, server: { address, who } }: Client): string {
  const set = inApps('"Prowlarr Server" to the proxy\'s address, and "Sync Level" to Full Sync', name);
  const gives = `Prowlarr gives ${name} the address ${address}`;
  if (!address) return `✗ Prowlarr gives ${name} no address that begins with http://: ${set}`;
  if (who === "other") return `✗ ${gives}, which is not the proxy's: ${set}`;
  if (who === "nobody") return `✗ ${gives}, where nothing answers: if it is the proxy's, start that; if not, ${set}`;
  return "";
}

/** Judges whether a client asks the proxy for the indexers that Prowlarr gave it, and gets answers. */
function* judgeWay(client: Client): Generator<string> {
  const { name, server, isFullSync } = client;
  const facts = factsOf(client);
  const fault = judgeServer(client);
  // Once connected, a profile that nobody has looked at could download for ever.
  if (fault && !facts) yield `${fault} But not before this check has seen its profiles.`;
  if (!facts) return;
  const { indexers } = facts;
  // What can't be reached from here may be the proxy if Prowlarr gives that address.
  const mayBeProxy = ({ who, address }: Server) => who === "proxy" || (who === "unknown" && address === server.address);
  const astray = indexers.filter(({ server }) => !mayBeProxy(server));
  // Whatever Prowlarr gives, without Full Sync it leaves the indexers as someone has set them.
  const isSetByHand = !isFullSync && indexers.length > 0 && astray.length === 0;
  if (fault && !isSetByHand) return yield fault;
  const press = "press Sync App Indexers in Prowlarr (Settings → Apps).";
  const sync = isFullSync ? press : inApps('"Sync Level" to Full Sync', name);
  if (indexers.length === 0)
    return yield `✗ ${name} has no indexer of Prowlarr's that is switched on: ${sync} If that changes nothing, see their categories, tags and Sync Profile there.`;
  for (const [address, those] of Map.groupBy(astray, ({ server }) => server.address))
    yield `✗ ${name} asks ${address}, which is not the proxy's, for ${nameAll(those)}: ${sync} If that changes nothing, delete what it asks there under its Settings → Indexers, and sync again.`;
  if (astray.length === 0) yield* judgeTests(client, facts);
}

/** Judges whether a client has one of the indexers that report languages: Prowlarr chooses by categories and tags. */
function* judgeChoice(client: Client, indexers: Indexer[]): Generator<string> {
  const own = factsOf(client)?.indexers ?? [];
  const reporting = indexers.filter(reportsLanguages);
  if (own.length === 0 || reporting.length === 0) return;
  if (own.some(({ prowlarrId }) => reporting.some(({ id }) => id === prowlarrId))) return;
  yield `✗ ${client.name} has no indexer that reports languages, such as ${reporting[0]!.name}: see its categories, tags and Sync Profile in Prowlarr.`;
}

/** Judges what a client's own test of its indexers told. */
function* judgeTests({ name }: Client, { version, indexers, tests }: ClientApi): Generator<string> {
  if (tests === "not asked")
    return yield `? ${name} is not asked to test its indexers while no proxy answers for Prowlarr.`;
  if (tests === "no result")
    return yield `? ${name}: its own test of its indexers gave no result: press Test All Indexers under its Settings → Indexers.`;
  const reasonFor = (id: number) => tests.get(id) ?? "it was not tested, and its log says why.";
  const failed = indexers.filter(({ id }) => reasonFor(id));
  for (const [reason, those] of Map.groupBy(failed, ({ id, server }) => explain(reasonFor(id), server, name)))
    yield `✗ ${name} gets no answer from ${those[0]!.server.address} for ${nameAll(those)}: ${reason}`;
  if (failed.length > 0) return;
  const all = indexers.length === 1 ? "its one indexer" : `all of its ${indexers.length} indexers`;
  const unseen = indexers.find(({ server }) => server.who === "unknown")?.server.address;
  if (!unseen) yield `✓ ${name} ${version} asks the proxy for ${all}, and gets answers.`;
  else
    yield `? ${name} ${version} gets answers for ${all}, but whether ${unseen} is the proxy can't be seen from here.`;
}

/** Why a test failed: the client's own words, and what they leave out. */
function explain(reason: string, { address }: Server, name: string): string {
  // Sonarr and Radarr write a status so: [502:BadGateway]. Without one nobody answered, and they speak of DNS and IPv6.
  if (/\[(?:404|502):/.test(reason)) return `${reason} If the proxy's settings were changed, restart it.`;
  if (/\[\d{3}:/.test(reason) || !isLocal(address)) return reason;
  const set = inApps('"Prowlarr Server" to the proxy\'s address on your network', name);
  return `${reason} In a container, that address is the container itself: ${set}`;
}

/** One indexer by its name, or how many there are: a line for each of many would hide the other lines. */
function nameAll(indexers: { name: string }[]): string {
  const first = indexers[0]!.name;
  return indexers.length === 1 ? first : `${indexers.length} indexers (the first is ${first})`;
}

const NO_INDEXER = "✗ Prowlarr has no enabled indexer: add or enable one that reports languages.";
/** The list of Prowlarr's indexers and its sum. */
export function* judgeIndexers(indexers: Indexer[]): Generator<string> {
  if (indexers.length === 0) return yield NO_INDEXER;
  yield "The latest releases of each indexer:";
  const idWidth = Math.max(...indexers.map(({ id }) => String(id).length));
  const nameWidth = Math.min(40, Math.max(...indexers.map(({ name }) => name.length)));
  for (const { id, name, latest } of indexers)
    yield `  ${String(id).padStart(idWidth)}  ${name.padEnd(nameWidth)}  ${describeLatest(latest)}`;

  const reporting = indexers.filter(reportsLanguages).length;
  const silent = indexers.filter(({ latest }) => latest instanceof Problem || latest.items === 0).length;
  const isWell = indexers.every(({ latest }) => !(latest instanceof Problem));
  const sum = `${reporting} of ${indexers.length} report languages`;
  if (reporting > 0 && isWell) yield `✓ ${sum}.`;
  else if (silent > 0) yield `? ${sum}, but ${silent} gave no releases: run this again later.`;
  else yield "✗ No enabled indexer reports languages: the proxy is of use only with one that does.";
}

function describeLatest(latest: Asked<Latest>): string {
  if (latest instanceof Problem) return latest.message;
  const { items, reported, french, tagged } = latest;
  if (items === 0) return "no releases";
  const releases = `${String(items).padStart(3)} ${items === 1 ? "release" : "releases"}`;
  if (reported === 0) return `${releases}, none reports a language: the proxy can do nothing here`;
  return `${releases}, ${reported} report a language, ${french} French, ${tagged} to be tagged`;
}

// Printing.

/**
 * Checks the whole way, and prints what it finds.
 *
 * @returns whether there is nothing to fix
 */
async function check(config: Config): Promise<boolean> {
  print("Asking the proxy, Prowlarr, Sonarr and Radarr …");
  const lines = [...judge(await askAll(config))];
  for (const line of lines) print(withoutKeys(line, config));
  const faults = lines.filter((line) => line.startsWith("✗")).length;
  const isUnsure = lines.some((line) => line.startsWith("?"));
  if (faults > 0) print(`✗ ${faults} ${faults === 1 ? "thing" : "things"} to fix, from the top down.`);
  else print(isUnsure ? "? Nothing to fix, but not all could be seen: see the lines with ?." : "✓ All is well.");
  return faults === 0;
}

/**
 * Prints what Prowlarr's indexers report.
 *
 * @throws Problem if Prowlarr can't be asked
 */
async function listIndexers(config: Config): Promise<void> {
  const indexers = await askIndexers(config).catch((error) => {
    throw prowlarrProblem(error, config);
  });
  for (const line of judgeIndexers(indexers)) print(withoutKeys(line, config));
}

/** Someone is waiting for the result, so an answer may take no more than 30 seconds. */
function inHaste(config: Config): Config {
  return { ...config, timeout: Math.min(config.timeout, 30_000) };
}

/** A line without the keys that the check knows: someone may have put one in a name. A real one has 32 characters. */
function withoutKeys(line: string, { apiKey, clientKeys }: Config): string {
  const keys = [apiKey, ...clientKeys.Sonarr, ...clientKeys.Radarr].filter((key) => key.length >= 8);
  return keys.length > 0 ? line.replace(new RegExp(keys.map(RegExp.escape).join("|"), "gi"), "…") : line;
}

// ─── Command line ───────────────────────────────────────────────────────────────────────────────────────────────────

const HELP = `language-tag-proxy ${version}: writes an indexer's language attribute into release titles

  language-tag-proxy                  serve (see Configuration)
  language-tag-proxy --indexers       before an installation: list which of Prowlarr's indexers report languages
  language-tag-proxy --check          after it: check the whole way from Sonarr and Radarr to each indexer, and say what to do
  language-tag-proxy --title TITLE…   show what a French release of that title becomes, and why; - reads titles from stdin
  language-tag-proxy --demo           serve a small sample feed, to try the proxy without Prowlarr
  language-tag-proxy --health         ask a running proxy whether it answers; exits with 0 or 1
  language-tag-proxy --help, --version

Configuration, from the environment:
  BACKEND_URL      Prowlarr's address, such as http://prowlarr:9696 (required)
  BACKEND_API_KEY  Prowlarr's key, used only by --indexers and --check
  SONARR_API_KEY   Sonarr's key, used only by --check; several are separated by commas
  RADARR_API_KEY   Radarr's key, likewise
  PORT             where to listen (8080)
  BACKEND_TIMEOUT  seconds to wait for an answer to begin (120)
  LOG_LEVEL        debug (each French title), info (each request) or warn (only what went wrong); info if not set`;

async function main([option, ...rest]: string[]): Promise<void> {
  if (rest.length > 0 && option !== "--title") throw new Problem(`Unexpected argument "${rest[0]}": see --help.`);
  switch (option) {
    case undefined:
      return start(process.env);
    case "--demo":
      return demo();
    case "--title":
      return explainTitles(rest);
    case "--indexers":
      return listIndexers(inHaste(readConfig(process.env)));
    case "--check":
      process.exit((await check(inHaste(readConfig(process.env)))) ? 0 : 1);
    case "--health":
      process.exit((await whoAnswers(`http://127.0.0.1:${readPort(process.env)}`)) === "proxy" ? 0 : 1);
    case "--version":
      return console.log(version);
    case "--help":
    case "-h":
      return console.log(HELP);
    default:
      throw new Problem(`Unknown option "${option}": see --help.`);
  }
}

/** Serves until SIGTERM or SIGINT, and then until everything in flight is answered. */
function start(env: NodeJS.ProcessEnv): void {
  const config = readConfig(env);
  const server = serve(config);
  let isStopping = false;
  for (const signal of ["SIGTERM", "SIGINT"])
    process.on(signal, async () => {
      // A second signal ends it in any case. By default no signal ends process 1, which it is in a container.
      if (isStopping) process.exit(1);
      isStopping = true;
      // Its promise would also wait for clients that sent half a request (Bun 1.4.5, oven-sh/bun#37074).
      server.stop();
      while (server.pendingRequests > 0) await Bun.sleep(10);
      process.exit(0);
    });
  config.log.info?.(`language-tag-proxy ${version} listens on port ${config.port}; backend: ${config.backend}`);
}

/** Prints what each title becomes if its release has French audio, and why. */
async function explainTitles(args: string[]): Promise<void> {
  const lines = args.includes("-") ? (await Bun.stdin.text()).split("\n") : args;
  const titles = lines.map((line) => line.trim()).filter(Boolean);
  if (titles.length === 0) throw new Problem('--title needs a title, such as --title "Show.S01E01.1080p.WEB-GRP".');
  for (const title of titles) {
    const decision = decide(title);
    print(apply(title, decision));
    print(`  ${decision.reason}`);
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

/** Serves in front of a backend of its own, which has four releases. */
function demo(): void {
  const answer = () => new Response(DEMO_FEED, { headers: { "content-type": "application/rss+xml" } });
  const backend = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: answer });
  const env = { ...process.env, BACKEND_URL: backend.url.origin };
  start(env);
  console.log(`Try it in another terminal, and see MULTi.VFF in the first two titles; the other two stay as they are:

  curl "http://localhost:${readPort(env)}/1/api?t=tvsearch&q=les+revenants"
`);
}

if (import.meta.main) {
  main(Bun.argv.slice(2)).catch((error: unknown) => {
    console.error(error instanceof Problem ? error.message : error);
    process.exit(1);
  });
}
