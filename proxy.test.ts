import { describe, expect, test } from "bun:test";
import { apply, decide, explain } from "./proxy.ts";

// ─── Rules: what becomes of a title whose release has French audio ──────────────────────────────────────────────────
//
// One title a line. What stands between « and » is what the proxy inserts; a title without them stays as it is. Behind
// a `#`, what a client would misread otherwise, or where the rule is from.

const TITLES = `
# Series: before the first quality indicator after the season and episode
Show.S01E01.«MULTi.VFF.»1080p.WEB-GRP  # the specification's own example
Show.S01E01.MULTi«.VFF».1080p.WEB.H264-GRP  # rule 5
Money.Heist.S01E01.«MULTi.VFF.»1080p.WEB.H264-GRP
Les.Revenants.S02E03.«MULTi.VFF.»720p.HDTV.x264-GRP
Show.S01E02.«MULTi.VFF.»1080p.DSNP.WEB-DL.DDP5.1.H.264-GRP
Show.S01E02.«MULTi.VFF.»DSNP.WEB-DL.1080p.DDP5.1.H.264-GRP  # TRaSH's formats want the service right before WEB
Show.S01E01.«MULTi.VFF.»AMZN.WEB.AAC2.0-GRP  # AMZN.WEB is one quality to Sonarr: a tag between them makes it unknown
Show.S01E01.«MULTi.VFF.»CANAL+.WEB-DL.1080p.H264-GRP
Show.S01E01.«MULTi.VFF.»1080p.MyCANAL.WEB-DL.AAC2.0.H264-GRP
Show.S01E05.Web.of.Lies.«MULTi.VFF.»1080p.WEB.H264-GRP  # a Web in an episode's title is no source
Show.S01E05.Max.«MULTi.VFF.»2160p.MAX.WEB-DL.H265-GRP
Show.S01E03.REPACK.«MULTi.VFF.»1080p.BluRay.x264-GRP  # the revision is found before the tag as well as behind it
Show.S02E01.iNTERNAL.«MULTi.VFF.»720p.WEB.x264-GRP
Squid.Game.2021.S01.«MULTi.VFF.»2160p.WEBRip.4KLight.DV.HDR10.x265-GRP  # year and season: the name ends at the season
1899.S05E05.Le.Retour.«MULTi.VFF.»1080p.DSNP.WEB-DL.x265-GRP
9-1-1.S07E11.«MULTi.VFF.»1080p.BluRay.HEVC-GRP
The.100.S07E08.«MULTi.VFF.»720p.HMAX.WEB-DL-GRP
House.of.the.Dragon.S11E09.Hybrid.«MULTi.VFF.»2160p.WEB-DL-GRP
Malcolm.S01.MULTi«.VFF».1080p.WEB.x265-GRP

# Markers are whole: a tag inside loses episodes
Show.S01E01E02.«MULTi.VFF.»1080p.WEB-GRP
Show.S01E91-E100.«MULTi.VFF.»1080p.WEB-GRP  # S01E91.MULTi.VFF-E100 would be one episode
Show.S01E01-02-03.«MULTi.VFF.»720p.HDTV-GRP
Show.S01.E01-E08.«MULTi.VFF.»1080p.WEB-GRP  # between S01 and E01, S01 becomes a part of the name
Red Series S01 E01-E02 «MULTi.VFF »1080p AMZN WEBRip x264 GRP
Show.S03E01.S03E02.«MULTi.VFF.»720p.HDTV.X264-GRP
Show.S01E05 - S01E06.«MULTi.VFF.»1080p.WEB-GRP
Show.S6.E1E3.Title.«MULTi.VFF.»1080p.WEB-DL
Show - 1x01_02 «MULTi.VFF »- Title
Show.2x04.2x05.«MULTi.VFF.»720p.BluRay-GRP
Show - 5x01 - x02 «MULTi.VFF »- Title (2)
Show 2010x15 - 2010x16 «MULTi.VFF »720p HDTV
Series Title (S05E06-08 of 24) «MULTi.VFF »City Sushi  # "of 24" says how many there are
Show.S01.PART2.«MULTi.VFF.»1080p.WEB.H264-GRP  # before PART2 the season is lost
Show.S01.PART2.«MULTi.VFF.»mkv
Show.S01-S05.«MULTi.VFF.»1080p.WEB-GRP
Series Title S01 - S07 «MULTi.VFF »BluRay 1080p x264 REPACK -SacReD
Show - Season 1 - Episode 01 «MULTi.VFF »(Resolution).avi
Series Title S01E11.5 «MULTi.VFF »720p HDTV x264
Koh.Lanta.S2024E01.«MULTi.VFF.»1080p.WEB.H264-GRP

# French words for season and episode
Kaamelott Saison 3 «MULTi.VFF »1080p BluRay x264
The.Day.of.the.Jackal.Saison.1.«MULTi.VFF.»1080p.WEB.H264-FW
Show Saison 2 Episode 4 «MULTi.VFF »1080p WEB H264-GRP
Naruto Épisode 3 «MULTi.VFF »1080p WEB
Speer.Et.Hitler.E03.FINAL.DOC.«MULTi.VFF.»PDTV.XViD-GRP
Visitors Saison 1 FRENCH HDTV
Show.S01.INTEGRALE.«MULTi.VFF.»1080p.WEB.H264-GRP
Show S01 Intégrale «MULTi.VFF »1080p BluRay x265
Breaking.Bad.INTEGRALE.«MULTi.VFF.»BluRay-GROUP
Series.Saison3.VOSTFR.«MULTi.VFF.»HDTV.XviD-NOTAG

# Dates
Quotidien.2023.11.14.«MULTi.VFF.»1080p.WEB.H264-GRP
Quotidien.14.11.2023.«MULTi.VFF.»1080p.WEB.H264-GRP
Show.2023.11.14.Part.2.«MULTi.VFF.»1080p.WEB-GRP  # before Part.2 the date is lost
[www.site.com] - The Daily Series - 2023-05-26« MULTi.VFF»
this.is.a.show.2015.0308«.MULTi.VFF»-grp
A Late Talk Show - 2011-04-12 «MULTi.VFF »- Gov. Deval Patrick

# Movies: the name ends at the year
Movie.2019.«MULTi.VFF.»1080p.BluRay.x264-GRP
Another.Movie.2007.«MULTi.VFF.»1080p.DSNP.WEB-DL.DDP5.1.H.264-ABC
Charlottes.Web.2006.«MULTi.VFF.»1080p.BluRay.x264-GRP  # the Web before the year is a part of the name
Blade.Runner.2049.2017.«MULTi.VFF.»1080p.BluRay.x264-GRP  # two years in a row: the second one is the year
1917.2019.«MULTi.VFF.»1080p.BluRay.x264-GRP
2012.2009.MULTi«.VFF».2160p.UHD.BluRay.x265-GRP
2001.A.Space.Odyssey.1968.IMAX.«MULTi.VFF.»480p.BDRip.AC3.H264-GRP
2012.«MULTi.VFF.»AC3.720p.BluRay.x264-GRP  # a title that begins with a year begins with its name
1917 (2019) «MULTi.VFF »[1080p] [BluRay]
Wonder Woman 1984 (2020) «MULTi.VFF »(1080p AMZN WEB-DL x265)
Mad.Max.1979-2015.«MULTi.VFF.»1080p.BluRay.x264-GRP  # inside the range the year becomes 1979
Mad Max (1979-2015) «MULTi.VFF »1080p BluRay x264-GRP
Hidden.Figures.2016.UNRATED.«MULTi.VFF.»1080p.BluRay.x264-GRP
Transformers.2011.3D.HSBS.«MULTi.VFF.»1080p.BluRay.x264-GRP
Movie.2019.HC.«MULTi.VFF.»1080p.WEBRip.x264-GRP
Escape.from.New.York.1981.COMPLETE.«MULTi.VFF.»UHD.BLURAY-GRP
WALL.E.2008.«MULTi.VFF.»2160p.UHD.BluRay.DV.HDR10PLUS.HEVC-NOTAG
Movie.2019.«MULTi.VFF.»4K.HDR.BluRay.x265-GRP
Amadeus.1984.«MULTi.VFF.»1080p.mHD.10bit.x265-GRP
A.Trip.to.the.Moon.1902.«MULTi.VFF.»1080p.BluRay-GRP
The.Horse.1888.«MULTi.VFF.»1080p.BluRay-GRP
Joker BluRay 1080p 2019« MULTi.VFF»  # French public trackers put the year last, and all before it is the name to Radarr
Parenthood.2010«.MULTi.VFF»

# Spaces, underscores, brackets
Movie Name 2018 «MULTi.VFF »2160p BluRay x265-GRP
Series Time S02 «MULTi.VFF »720p HDTV x264 GRP
Movie Name (2019) «MULTi.VFF »(1080p BluRay x265 HEVC 10bit AAC 7.1 Bandi)
Movie Title (2020) «MULTi.VFF »[1080p] [WEBRip] [5.1] [YTS.MX]  # in brackets: before the bracket
Show Name (2020) Season 1 S01 «MULTi.VFF »(1080p AMZN WEB-DL x265) [QxR]
Series Title (2021) - S01E02 - Here Goes Nothing «MULTi.VFF »(1080p WEB-DL x265 SAMPA).mkv
Series - S01E01 - Title «MULTi.VFF »[HDTV-1080p]
Movie Title 2018 «MULTi.VFF »(WEB 1080p HEVC Opus) [Netaro]
Series!!! on ICE - S01E12[JP «MULTi.VFF »BD Remux][ENG subs]
Film_2016_«MULTi.VFF.»1080p_WEB  # to the custom formats' \\b an underscore is a letter: VFF_ is not VFF
Film_2016_MULTi«.VFF.»_1080p
2019_08_20_«MULTi.VFF.»1080_all.mp4
9-1-1_S09E02_«MULTi.VFF.»DVDRip_x265_DD5.1-GRP
1234-S03E14-«MULTi.VFF.»720p-HDTV-X264-DIMENSION
【字幕】Show【S01E01】«.MULTi.VFF.»【1080p】

# No quality indicator: right after the marker, never at the end
Show - S01E01 «MULTi.VFF »- Title.avi  # at the end the group is lost, before .avi the quality that the extension tells
The.Series.S02E15.«MULTi.VFF.»avi
The.Series.S02E15«.MULTi.VFF»
Series Title - S01E01 «MULTi.VFF »- Pilot.en.forced.sub
Series.Title.S04E17-«MULTi.VFF.»DIMENSION  # Sonarr cuts off all up to S04E17- before it looks for the group
Movie Title 2012 «MULTi.VFF »Directors Cut
Movie (1968) «MULTi.VFF »Director's Cut.mkv
Movie.2019«.MULTi.VFF»-GRP
Movie Name (2016) «MULTi.VFF »{tmdb-43074}
Suicide Squad Extended (2016).«MULTi.VFF.»mkv

# Neither indicator nor marker: before group, hash and extension
Movie«.MULTi.VFF»
My.Movie.GERMAN.Extended.Cut«.MULTi.VFF»
Movie«.MULTi.VFF»-GRP.mkv
[ACX]Some Anime Show 01 Role Play« MULTi.VFF» [Kosaka] [9C57891E].mkv
13 Series Se.1 afl.2-3-4« MULTi.VFF» [VTM]

# No marker but an indicator
Arte.Les.Grandes.Migrations.«MULTi.VFF.»720p.HDTV.x264-GRP
Passengers.German.DL.«MULTi.VFF.»AC3.Dubbed..BluRay.x264-PsO
[TMS-Remux].Series.Title.X.21.«MULTi.VFF.»720p.[76EA1C53].mkv  # the group in front is no source
Matrix.La.Trilogie.«MULTi.VFF.»1080p.BluRay.x264-GRP
Series.Title.S01E01.«MULTi.VFF.»The.Web.MT-dd  # the group at the end is no sound
The.Series.S01E13.«MULTi.VFF.»x264-GRP

# Anime
[SubsPlease] Anime Title - 01v2 («MULTi.VFF »1080p) [B1F227CF]
[HorribleSubs] Show-Title - 13 [«MULTi.VFF »1080p].mkv
[Underwater]_Show_Title_-_12_(«MULTi.VFF.»720p)_[5C7BC4F9]
[GHOST][1080p] Series - 25 [«MULTi.VFF »BD HEVC 10bit Dual Audio AC3][AE0ADDBA]
[Erai-raws] Series Title! - 01~10 [«MULTi.VFF »1080p][Multiple Subtitle]  # Multiple is not MULTi
[Anime Time] Series no Mayo - 12.5.«MULTi.VFF.»mkv
[Tsundere-Raws] Kanojo Okarishimasu 2 - 05 VOSTFR (CR) [WEB «MULTi.VFF »1080p x264 AAC].mkv  # Sonarr knows [WEB by its bracket
[Tsundere-Raws] Sousou no Frieren - 28 [VOSTFR «MULTi.VFF »1080p].mkv
[Kaerizaki-Fansub] One Piece 1044 «MULTi.VFF »FHD (1920x1080).mp4
[Zurako] Log Movie - 01 - The Movie («MULTi.VFF »BD 1080p AAC) [7AE12174].mkv  # a film without year: to Radarr all before a bracket is name
[Elysium]Movie.Name.01(«MULTi.VFF.»BD.720p.AAC.DA)[0BB96AD8].mkv
[Commie]_Some_Anime_Show_-_15_«MULTi.VFF.»[E76552EA]
[HorribleSubs] Series Title! S01 [Web][MKV]« MULTi.VFF »[h264][1080p][AAC 2.0]
[Anime-Koi] Series Title 2 - 01 [«MULTi.VFF »h264-720p][28D54E2C]
Some Anime Show (2011) Episode 99-100 «MULTi.VFF »[1080p] [Dual.Audio] [x265]

# Site prefixes
[ Torrent911.com ] The.Jackal.S01.«MULTi.VFF.»1080p.WEB.H264-FW
[ www.Torrenting.com ] - Series.2012.S02E17.«MULTi.VFF.»720p.HDTV.X264-GRP
www.site.org - Movie.Title.2023.«MULTi.VFF.»720p.HDTV.X264-GRP
test-hyphen123.org.au - Movie.Title.2023.«MULTi.VFF.»720p.HDTV.X264-GRP
[ OxTorrent.bz ] Elysium.2013.«MULTi.VFF.»2160p.UHD.REMUX.HDR.HEVC-GRP.mkv

# MULTi gets its VFF where it stands
Name 2023 MULTi«.VFF» 1080p BluRay
Movie.2019.MULTI«.VFF».1080p.BluRay.x264-GRP
Movie.2019.1080p.BluRay.x264.MULTi«.VFF»-GRP
Babel (2006) [1080p] MULTi«.VFF» BluRay x264-PopHD
Battleship (2012) [MULTi«.VFF»] [1080p] BluRay x264-anod
Show.S01E01.Multi«.VFF».1080p.WEB-GRP  # in other letter case where tags stand
Show.S01E08.Multi.Task.«MULTi.VFF.»720p.HDTV-GRP  # an episode's title
Show.S01E08.Multi.Task.MULTi«.VFF».720p.HDTV-GRP
dolittle.2020.multi«.VFF».complete.uhd.bluray-orca
Multiplicity.1996.«MULTi.VFF.»1080p.BluRay.x264-GRP
Multi.Facial.1995.«MULTi.VFF.»1080p.WEB-DL-GRP
Show.S01E09.MULTi.SUBS.«MULTi.VFF.»1080p.WEB-GRP  # it speaks of subtitles
Show.S01E09.«MULTi.VFF.»1080p.WEB-DL.H.264-VARYG (Blue Lock, Multi-Subs)
Show.S01E05.Multisub.«MULTi.VFF.»1080p.WEB.H264-GRP
Movie.Title.2017.1080p.Bluray.MULTI.French.English
Mad Max Fury Road 2015 MULTi«.VFF» FR2 1080p HDLight x265 HEVC.GHT
Star.Wars.I.[1080p].MULTi«.VFF».(1999).BluRay.x264-GRP  # MULTi and MULTI count anywhere

# Already French
Money.Heist.S01E01.VFF.1080p.WEB.H264-GRP
Movie.2019.MULTi.VFF.1080p.WEB.H264-GRP
Movie.2019.MULTi.FRENCH.1080p.WEB.H264-GRP
Severance.S01.MULTI.VF2.1080p.WEB.H264-FW
Movie (2016) MULTi VFQ [1080p] BluRay x264-PopHD
Sapin.1989.MULTi.VFi.1080p.HDLight.x264-Tonyk.mkv  # the usual spelling of VFI
The.Bear.S04.MULTI.VOF.1080p.WEB.H264-TFA
Drive.2011.MULTi.(VFF+VFQ).1080p.BluRay.HDLight.x264-Z
Ant-Man 2015 VFF-VFQ-VOA 1080p HDLight x264.GHT
Eternals.2021.MULTi.WiTH.TRUEFRENCH.1080p.DSNP.WEB-DL.H264-GRP
Film.FRENCH.2011.DVDRip
Film TRUEFRENCH BluRay 1080p 2019
Film.2019.French.1080p.WEB.H264-GRP
Movie.Title.2017.1080p.Bluray.French
Film.2019.truefrench.bdrip.x264-grp
Dexter.S02E04.VF.HDTV.XviD-GRP
Frieren 05 [VF+VOSTFR]
Paris.VF.2019.«MULTi.VFF.»1080p.WEB-GRP  # VF counts only after the name
Film_2016_FRENCH_1080p_WEB
HPI.S04E15.FRENCH.1080p.WEB-GRP
OSS.117.2009.FRENCH.PROPER.1080p.BluRay-GRP

# French words that are no tags
The.French.Dispatch.2021.«MULTi.VFF.»1080p.BluRay.x264-GRP
THE.FRENCH.DISPATCH.2021.«MULTi.VFF.»1080P.WEB.H264-GRP  # all in capitals: only where tags stand
THE.FRENCH.CONNECTION.1971.«MULTi.VFF.»1080p.BluRay.x264-GRP
THE.MATRIX.1999.FRENCH.1080P.WEB.H264-GRP
Show.S01E05.French.Kiss.«MULTi.VFF.»1080p.WEB.H264-GRP
French.Kiss.1995.«MULTi.VFF.»1080p.BluRay.x264-GRP
La.French.2014.«MULTi.VFF.»1080p.BluRay.x264-GRP
The.French.Chef.S01E02.«MULTi.VFF.»1080p.WEB.H264-GRP
Pardon.My.French.2021.«MULTi.VFF.»720p.WEB-GRP
Frenchie.2019.«MULTi.VFF.»1080p.WEB-GRP

# Subtitles are no audio; Sonarr sees no language right before a word that begins with SUB
Show.S01E01.VOSTFR.«MULTi.VFF.»1080p.WEB-GRP
Greys.Anatomy.S01E01.SUBFRENCH.«MULTi.VFF.»1080p.WEB.x264-GRP
Show.S01E01.SUBFRENCH.«MULTi.VFF.»mkv
Show.S01E01.SUBFRENCH.SUBFORCED«.MULTi.VFF»
Show.S01E01.FRENCH.SUBFORCED.«MULTi.VFF.»1080p.WEB.H264-GRP
Show.S01E01.MULTi.SUBFORCED.«MULTi.VFF.»1080p.WEB.H264-GRP
Show.S01E01.FRENCH.SUBS.«MULTi.VFF.»1080p.WEB.H264-GRP
`;

/** The table's rows: the heading that a title stands under, the title, and the title that is expected. */
const ROWS = TITLES.trim()
  .split(/\n\n?# /)
  .flatMap((section) => {
    const [heading, ...lines] = section.replace(/^# /, "").split("\n");
    return lines.map((line) => {
      const marked = line.replace(/ {2}# .*$/, "");
      return { heading: heading!, title: marked.replace(/«.*»/, ""), expected: marked.replace(/[«»]/g, "") };
    });
  });

const tag = (title: string) => apply(title, decide(title));

describe("rules", () => {
  test.each(ROWS)("$heading: $title", ({ title, expected }) => {
    expect(tag(title)).toBe(expected);
  });

  test("a title that has its tag keeps it as it is", () => {
    for (const { expected } of ROWS) expect(tag(expected)).toBe(expected);
  });

  // TRaSH's patterns, which most French users import; letter case is ignored.
  test("every title that gets a tag is VFF to the clients' custom formats and not VF2; after anything but _ MULTi too", () => {
    const tagged = ROWS.filter(({ title, expected }) => title !== expected);
    expect(tagged.length).toBeGreaterThan(100);
    for (const { expected } of tagged) {
      expect(expected).toMatch(/\b(TRUEFRENCH|VFF)\b/i);
      if (!expected.includes("_MULTi")) expect(expected).toMatch(/\b(Multi)(?![ ._-]?sub(s)?)(\b|\d)/i);
      expect(expected).not.toMatch(/\b(VF2|(VF(F|Q)[ .]VF(F|Q)))\b/i);
    }
  });

  test("a title of more than 1,000 characters is no release's, and stays", () => {
    const title = `${"Show.".repeat(200)}S01E01.1080p.WEB-GRP`;
    expect(tag(title)).toBe(title);
    expect(explain(decide(title))).toBe("longer than 1000 characters: not a release title");
  });

  test.each([
    ["Show.S02E01.1080p.WEB-GRP", 'name ends after "S02E01"; tag goes before "1080p"'],
    ["Movie.1080p.WEB-GRP", 'no year or episode found; tag goes before "1080p"'],
    ["Show.S02E01.mkv", 'name ends after "S02E01"; no quality indicator follows, so the tag goes right there'],
    ["Movie-GRP", "no year, episode or quality indicator found; tag goes to the end, before group and file extension"],
    ["Movie.2019.MULTi.1080p.WEB-GRP", 'MULTi found: ".VFF" added'],
    ["Movie.2019.VFF.1080p.WEB-GRP", 'already French: "VFF"'],
  ])("%s is explained: %s", (title, reason) => {
    expect(explain(decide(title))).toBe(reason);
  });
});
