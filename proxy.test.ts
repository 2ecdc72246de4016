import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import http, { type IncomingHttpHeaders, type OutgoingHttpHeaders, type ServerResponse } from "node:http";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { networkInterfaces, tmpdir } from "node:os";
import { text } from "node:stream/consumers";
import zlib from "node:zlib";
import { XMLParser, XMLValidator } from "fast-xml-parser";
import { version } from "./package.json";
import {
  apply,
  chunksOf,
  decide,
  isFrench,
  judge,
  judgeIndexers,
  Problem,
  readConfig,
  serve,
  tagFeed,
} from "./proxy.ts";
import type { Client, ClientApi, Indexer, Insertion, Profile, World } from "./proxy.ts";

// Much runs side by side here, and a busy computer takes its time.
setDefaultTimeout(40_000);

/** Where random cases begin. A failure prints its seed, and can be had again with `SEED=… bun test`. */
const SEED = Number(process.env["SEED"] ?? Date.now() % 2 ** 31);

// ─── Rules: what becomes of a title whose release has French audio ──────────────────────────────────────────────────
//
// One title a line. What stands between « and » is what the proxy inserts; a title without them stays as it is. Behind
// a `#`, what a client would misread otherwise, or where the rule is from.

const TITLES = `
# Series: before the first quality indicator after the season and episode
Show.S01E01.«MULTi.VFF.»1080p.WEB-GRP  # the simplest case
Show.S01E01.MULTi«.VFF».1080p.WEB.H264-GRP  # MULTi gets its VFF where it stands
Money.Heist.S01E01.«MULTi.VFF.»1080p.WEB.H264-GRP
Les.Revenants.S02E03.«MULTi.VFF.»720p.HDTV.x264-GRP
Show.S01E02.«MULTi.VFF.»1080p.DSNP.WEB-DL.DDP5.1.H.264-GRP
Show.S01E02.«MULTi.VFF.»DSNP.WEB-DL.1080p.DDP5.1.H.264-GRP  # TRaSH's formats want the service right before WEB
Film.2017.MD.«MULTi.VFF.»TS.WEB.x264-GRP  # TS.WEB is a telesync: a tag between them makes it a WEB
Show.S01E01.«MULTi.VFF.»AMZN.WEB.AAC2.0-GRP  # AMZN.WEB is one quality to Sonarr: a tag between them makes it unknown
Show.S01E01.«MULTi.VFF.»CANAL+.WEB-DL.1080p.H264-GRP
Show.S01E01.«MULTi.VFF.»1080p.MyCANAL.WEB-DL.AAC2.0.H264-GRP
Show.S01E05.Web.of.Lies.«MULTi.VFF.»1080p.WEB.H264-GRP  # a Web in an episode's title is no source
Show.S01E05.Max.Webster.«MULTi.VFF.»2160p.MAX.WEB-DL.H265-GRP  # a service counts only before a WEB that is a source
Show.S01E01.«MULTi.VFF.»WEB.REPACK.x264-GRP  # WEB is a source before a tag, too
Show.S01E01.«MULTi.VFF.»WEB.GERMAN.VC-1-GRP
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
Show 2010x15 - 2010x16 «MULTi.VFF »- Title
Series Title (S05E06-08 of 24) «MULTi.VFF »City Sushi  # "of 24" says how many there are
Show.S01.PART2.«MULTi.VFF.»1080p.WEB.H264-GRP  # before PART2 the season is lost
Show.S01.PART2.«MULTi.VFF.»mkv
Show.S01-S05.«MULTi.VFF.»1080p.WEB-GRP
Series Title S01 - S07 «MULTi.VFF »BluRay 1080p x264 REPACK -SacReD
Show - Season 1 - Episode 01 «MULTi.VFF »(Resolution).avi
Series Title S01E11.5 «MULTi.VFF »720p HDTV x264
Koh.Lanta.S2024E01.«MULTi.VFF.»1080p.WEB.H264-GRP
Show S02E16+E17 «MULTi.VFF »1080p WEB x264
Show 8x04 & 8x05 «MULTi.VFF »720p BluRay
Show 2x30+31 «MULTi.VFF »720p BluRay
Show S01E00 & S01E01 & S01E02 «MULTi.VFF »1080p WEB
Show 1985 S01E22c «MULTi.VFF »The Library.mp4
Show Episode 10 - 0.00.07-0.11.02.«MULTi.VFF.»mp4
Show - Temporada 4 [HDTV][Cap.408_409]« MULTi.VFF »[Castellano]  # the Spanish way: [Cap.408] is S04E08

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
Blade.Runner.1982.«MULTi.VFF.»Full.BluRay.1080p.AVC-GRP  # Full.MULTi.VFF.BluRay is no BR-DISK to Radarr
WALL.E.2008.«MULTi.VFF.»2160p.UHD.BluRay.DV.HDR10PLUS.HEVC-NOTAG
Movie.2019.«MULTi.VFF.»4K.HDR.BluRay.x265-GRP
Amadeus.1984.«MULTi.VFF.»1080p.mHD.10bit.x265-GRP
A.Trip.to.the.Moon.1902.«MULTi.VFF.»1080p.BluRay-GRP
The.Horse.1888.«MULTi.VFF.»1080p.BluRay-GRP
Joker BluRay 1080p 2019« MULTi.VFF»  # French public trackers put the year last, and all before it is the name to Radarr
Foxcatcher [720p] (2014)« MULTi.VFF»
Before.Midnight [1080p] VOSTFR 2013 «MULTi.VFF »BluRay x264-Pop
Parenthood.2010«.MULTi.VFF»
Tenet.2020.«MULTi.VFF.»720p.BluRay.DD5.1x264-SbR  # 1x264 is no episode, as Sonarr removes x264 first
Film.2010.«MULTi.VFF.»1920x800.x265-GRP  # a picture's size is no year and episode
Film.2019.«MULTi.VFF.»1080p.BluRay.x264-S6  # a group's name is no season
Show-S06«.MULTi.VFF»

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
9-1-1_S09E02_«MULTi.VFF.»DVDRip_x265_DD5.1-GRP
【字幕】Show【S01E01】«.MULTi.VFF.»【1080p】

# Hyphens: before the one that opens the quality, with dots
The-Expanse-S02E04«.MULTi.VFF.»-HDTV-x264-SVA  # S02E04-MULTi.VFF.HDTV is no HDTV to Sonarr
1234-S03E14«.MULTi.VFF.»-720p-HDTV-X264-DIMENSION
Le-Film-2019«.MULTi.VFF.»-1080p-WEB-H264-GRP
Le-Film-2019-MULTi«.VFF.»-1080p
Le-Film«.MULTi.VFF.»-720p  # a resolution at the end is no group
Saekano-01«.MULTi.VFF.»-480p-WEB [F71AF8F8]
One-Piece-720-«MULTi.VFF.»720p-WEB  # three digits before a dot are a season and an episode to Sonarr: 720. is S07E20
One-Piece-ep.275-«MULTi.VFF.»720p
Film 2019 -«MULTi.VFF »[1080p]  # behind a space it opens nothing, and dots would stand beside spaces
Artist-A_Song_(2009)«.MULTi.VFF.»-x264-2009-GRP
Artist-A_Song_(2009)-FR-«MULTi.VFF.»x264-2009-GRP  # with underscores other hyphens may belong to the group

# No quality indicator: right after the marker, never at the end
Show - S01E01 «MULTi.VFF »- Title.avi  # at the end the group is lost, before .avi the quality that the extension tells
The.Series.S02E15.«MULTi.VFF.»avi
The.Series.S02E15«.MULTi.VFF»
Series Title - S01E01 «MULTi.VFF »- Pilot.en.forced.sub
Series.Title.S04E17-«MULTi.VFF.»DIMENSION  # Sonarr cuts off all up to S04E17- before it looks for the group
Fallout.S06 E01« MULTi.VFF»-FW  # the hyphen belongs to the glued form alone
Parks_and_Recreation-s03-e02«.MULTi.VFF»-Flu_Season.mkv
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
«MULTi.VFF»-GRP  # at the start without a dot
«MULTi.VFF.»[abc]
«MULTi.VFF »[abc] [def]

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
[HorribleSubs] Series Title! S01 «MULTi.VFF »[Web][MKV][h264][1080p][AAC 2.0]  # [WEB] is a source
[Group] Anime Title - 12 [WEB][«MULTi.VFF »1080p]  # Sonarr knows [WEB] by its two brackets
[Group] Anime Title - 12 «MULTi.VFF »[WEB]
[Erai-raws] Anime Title - 03 [«MULTi.VFF »720p CR WEBRip][E96771E5].mkv  # eight hex digits in brackets are a hash, no episode
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
Le Film 2019 French (1080p)
Le Film 2019 French (US) «MULTi.VFF »1080p BluRay  # a bracket alone makes no tag
Film.2019.truefrench.bdrip.x264-grp
Dexter.S02E04.VF.HDTV.XviD-GRP
Frieren 05 [VF+VOSTFR]
Paris.VF.2019.«MULTi.VFF.»1080p.WEB-GRP  # VF counts only after the name
Film_2016_FRENCH_1080p_WEB
HPI.S04E15.FRENCH.1080p.WEB-GRP
OSS.117.2009.FRENCH.PROPER.1080p.BluRay-GRP
Le Film VFF.sub  # an extension says nothing about subtitles

# French words that are no tags
The.French.Dispatch.2021.«MULTi.VFF.»1080p.BluRay.x264-GRP
THE.FRENCH.DISPATCH.2021.«MULTi.VFF.»1080P.WEB.H264-GRP  # all in capitals: only where tags stand
THE.FRENCH.CONNECTION.1971.«MULTi.VFF.»1080p.BluRay.x264-GRP
THE.MATRIX.1999.FRENCH.1080P.WEB.H264-GRP
SHOW.S01E01.FRENCH.LD.1080p.WEB.H264-GRP  # LD and MD: how a French version was recorded
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
Show.S01E01.«MULTi.VFF.»sub
Le Film 2019 VFF sub «MULTi.VFF »1080p
Show.S01E01.SUBFRENCH.SUBFORCED«.MULTi.VFF»
Show.S01E01.FRENCH.SUBFORCED.«MULTi.VFF.»1080p.WEB.H264-GRP
Show.S01E01.MULTi.SUBFORCED.«MULTi.VFF.»1080p.WEB.H264-GRP
Show.S01E01.FRENCH.SUBS.«MULTi.VFF.»1080p.WEB.H264-GRP
`;

/** Each word of the lists in proxy.ts, where it decides what becomes of a title: it stands in place of WORD. */
const WORDS: Record<string, string> = {
  // Quality indicators
  "Film.2019.Foo.«MULTi.VFF.»WORD.Foo-GRP": `4K 8K UHD FHD x264 x265 x266 H264 H.265 H-266 HEVC AVC AV1 VP9 VC1 XviD DivX MPEG2
    MPEG-4 HDR HDR10 HDR10Plus DV DoVi SDR 8bit 10-bit Hi10 Hi10P DTS DTSHD DTSX TrueHD Atmos AC3 EAC3 DD DDP AAC FLAC
    Opus PCM LPCM MP3 WEBDL WEBRip WEBMux WEBHD WEBHDRip WEBDLRip BluRay MBluRay BD BDRip BDMux BDRemux BDLight BDFull FullBD Full.BluRay BD25
    BD50 BRRip UHDBD UHDBDRip UHDRemux Remux HDDVD HDLight 4KLight mHD HDTV SDTV PDTV DSR TVRip VODRip HDRip HDCAM DVD DVD5
    DVD9 DVDR DVDRip DVDScr`,
  "Film.2019.Foo.«MULTi.VFF.»WORD.WEB.H264-GRP": `Amazon AMZN ADN ATV ATVP CANAL+ CR CRAV DP DSNP HBO HMAX HULU iP iT MAX
    MYCANAL NF Netflix PCOK PMTP SALTO STAN TF1 TS`,
  // Tags: French is one only before another
  "Film.2019.French.WORD.Foo-GRP": `VFF VOF VFQ VFI VF2 TRUEFRENCH VF MULTi VO VOA VOST VOSTFR FR FRE FRA ENG ENGLISH
    GERMAN ITALIAN ITA SPANISH ESP JAPANESE KOREAN AUDIO DUAL DUBBED DL LD MD WiTH AD COMPLETE INTEGRALE INTÉGRALE PROPER REPACK
    RERIP REAL iNTERNAL LIMITED UNRATED EXTENDED REMASTERED RESTORED UNCUT CUSTOM HYBRID IMAX HC HSBS 3D`,
  "Film.2019.WORD.1080p-GRP": "VFF VOF VFQ VFI VF2 TRUEFRENCH FRENCH VF",
  "Film.2019.Foo.«MULTi.VFF.»WEB.WORD.Foo-GRP": "SUBFRENCH SUBFORCED",
  // Markers: a French before them is in the name
  "French.PROPER.WORD.2.«MULTi.VFF.»1080p-GRP": "Saison Season Stagione Temporada",
  "French.PROPER.WORD.12.«MULTi.VFF.»1080p-GRP": "E EP Épisode Episode Episodio",
  "Show.S01.WORD.2.«MULTi.VFF.»mkv": "Part Partie Vol Volume",
  // Extensions, which stay at the end
  "Le.Film«.MULTi.VFF»-GRP.WORD": "mkv mp4 avi ts m2ts wmv mpg iso nzb torrent srt ass sub rar zip",
};

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
  test.each(ROWS)("$heading: $title", ({ title, expected }) => expect(tag(title)).toBe(expected));

  const rows = Object.entries(WORDS).flatMap(([row, list]) =>
    list.split(/\s+/).map((word) => row.replace("WORD", word)),
  );
  test.each(rows)("a word of the lists: %s", (row) =>
    expect(tag(row.replace(/«.*»/, ""))).toBe(row.replace(/[«»]/g, "")),
  );

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

  test.each([
    ["Show.S02E01.1080p.WEB-GRP", 'name ends after "S02E01"; tag goes before "1080p"'],
    ["Movie.1080p.WEB-GRP", 'no year or episode found; tag goes before "1080p"'],
    // A marker has up to 17 numbers.
    [
      `Show.${"E01".repeat(17)}-GRP`,
      `name ends after "${"E01".repeat(17)}"; no quality follows, so the tag goes right there`,
    ],
    [`Show.${"E01".repeat(18)}-GRP`, "no year, episode or quality found; tag goes before group and extension"],
    ["Show.S02E01.mkv", 'name ends after "S02E01"; no quality follows, so the tag goes right there'],
    ["Movie-GRP", "no year, episode or quality found; tag goes before group and extension"],
    ["Movie.2019.MULTi.1080p.WEB-GRP", 'MULTi found: ".VFF" added'],
    ["Movie.2019.VFF.1080p.WEB-GRP", 'already French: "VFF"'],
    [`${"Show.".repeat(57)}1080p.WEB-GRP`.padEnd(301, "x"), "longer than 300 characters: not a release title"],
  ])("%s is explained: %s", (title, reason) => expect(decide(title).reason).toBe(reason));

  test("a title of 300 characters gets its tag, and a longer one stays", () => {
    const title = "Show.".repeat(56) + "S01E01.1080p.WEB-GRP";
    expect([title.length, tag(title)]).toEqual([300, title.replace("1080p", "MULTi.VFF.1080p")]);
    expect(tag(`${title}x`)).toBe(`${title}x`);
  });

  // A pattern that can read a text in two ways takes seconds for one of these, where all of them take a third of one.
  test(`4,000 hostile titles of 250 characters are decided within 5 s (SEED=${SEED})`, () => {
    const pieces =
      `E|S|x|1|01|111|2019|19|-|_| - |.| |Part|Part 2|Saison |Season|Episode |Cap.|[|]|(|)|()|)(|of|v2|a|+|&|~|–|!
      |.5|MULTi|MULTi.|French|FRENCH|VF|VFF|WEB|WEB-DL|H.264|1080p|AAC|DDP5.1|HDR10+|NF|é|É|sub|SUB|.mkv|-GRP|S01E01
      |E111x1|1x01|S1.E1|2023-05-26|[1080p]|(2019)|{|}|【|】`.split(/\n *\||\|/);
    let total = 0;
    many(4000, (dice) => {
      const some = () => dice.some(1, 4, () => dice.one(pieces)).join("");
      const body = dice.chance(0.6) ? some().repeat(250) : dice.some(250, 250, some).join("");
      const start = dice.one(["", "Show.", "000001", "Show.S01E01", "Film 2019 "]);
      const title = (start + body).slice(0, 245) + dice.one(["", "Q", "!", "Q.1080p", "-"]);
      const begun = performance.now();
      const { at, insert } = decide(title);
      total += performance.now() - begun;
      const isTag = /^(?:[ .]?MULTi\.VFF[ .]?|\.VFF\.?)?$/.test(insert) && at <= title.length;
      return isTag ? undefined : `${JSON.stringify(title)} gets ${insert} at ${at}`;
    });
    expect(total).toBeLessThan(5000);
  });

  const STOPPERS = ["Show.S01E01" + "E111x1".repeat(47), "000001" + "S1.E1".repeat(58), `000001${")(".repeat(146)}!`];
  test.each(STOPPERS)("%s, which stopped a first version, is decided 1,000 times within 2 s", (title) => {
    const started = performance.now();
    for (let n = 0; n < 1000; n++) decide(title + String(n % 10));
    expect(performance.now() - started).toBeLessThan(2000);
  });
});

// ─── Which values are French ────────────────────────────────────────────────────────────────────────────────────────

describe("a language", () => {
  test.each([
    ..."French français Français FRANÇAIS FRENCH francais francaise Française FR fr fr-FR fr_CA fra FRE".split(" "),
    ..."VFF vff VFQ VFI VF2 VOF VF TrueFrench TRUEFRENCH".split(" "),
    ...["French (Canada)", "English, French", "German,French", " French ", "English / Français", "English|French"],
    ...["English; French", "English & French", "English+French", "Multi (FR)", "French\n", "Franc\u0327ais"],
    // Of a language with subtitles and another one with audio, the audio counts.
    ...["French, English subtitles", "English subs, French", "VOSTFR, VFF"],
  ])("%j is French", (value) => {
    expect(isFrench(value)).toBe(true);
    // Also in a feed, which is passed over where a language has no f.
    expectTags(feedOf(TITLE + languageTag(value)));
  });

  test.each([
    ...["", " ", "English", "Frisian", "Afrikaans", "Fr0", "Frenchman", "Africa", "VFX", "VO", "Vofa", "frs"],
    ...["VOSTFR", "VOST FR", "SUBFRENCH", "STFR", "French subtitles", "French subs", "French (subbed)", "Sub: FR"],
    ...["Subtitles: French", "English, French subtitles", "sous-titres français", "Français sous-titré"],
  ])("%j is not French", (value) => expect(isFrench(value)).toBe(false));
});

// ─── Feeds: which byte of them changes ──────────────────────────────────────────────────────────────────────────────
//
// A tag that the proxy is to insert stands between ⟦ and ⟧.

const FRENCH = languageTag("French");
const TITLE = "<title>Film.2019.⟦MULTi.VFF.⟧1080p.WEB-GRP</title>";
const PLAIN_TITLE = before(TITLE);
const FRENCH_ITEM = `<item>${TITLE}${FRENCH}</item>`;

function languageTag(language: string): string {
  return `<newznab:attr name="language" value="${language}" />`;
}

/** A feed of items with these contents. */
function feedOf(...contents: string[]): string {
  return feedWith(...contents.map((content) => `<item>${content}</item>`));
}

/** A feed with these parts in its channel. */
function feedWith(...parts: string[]): string {
  return `<?xml version="1.0" encoding="UTF-8"?>\n<rss xmlns:newznab="n" xmlns:torznab="t"><channel>\n${parts.join("\n")}\n</channel></rss>\n`;
}

function before(marked: string): string {
  return marked.replace(/⟦[^⟧]*⟧/g, "");
}

function after(marked: string): string {
  return marked.replace(/[⟦⟧]/g, "");
}

/** A feed with its tags, and without them again, one character a byte. */
function tagged(feed: Uint8Array): { result: string; own: string; tags: Insertion[] } {
  const { tags } = tagFeed(feed);
  const bytes = Buffer.from(feed.buffer, feed.byteOffset, feed.byteLength);
  const chunks = Array.from(chunksOf(bytes, tags), (chunk) => Buffer.from(chunk));
  const result = Buffer.concat(chunks).toString("latin1");
  const without = (text: string, { at, insert }: Insertion) => text.slice(0, at) + text.slice(at + insert.length);
  return { result, own: tags.reduce(without, result), tags };
}

/** The feed is tagged where the ⟦marks⟧ are, and nowhere else. */
function expectTags(marked: string, encoding: "utf8" | "latin1" = "utf8"): void {
  const { result } = tagged(Buffer.from(before(marked), encoding));
  expect(result).toBe(Buffer.from(after(marked), encoding).toString("latin1"));
}

describe("a feed as Prowlarr writes it", () => {
  // Prowlarr 2.3.6: indented, entity-escaped, no CDATA, absolute download links.
  const item = (prefix: string, title: string, ...languages: string[]) => `    <item>
      <title>${title}</title>
      <description>desc &amp; more</description>
      <guid>http://127.0.0.1:15100/details/h1</guid>
      <prowlarrindexer id="1" type="private">Fake Indexer</prowlarrindexer>
      <comments>http://127.0.0.1:15100/details/h1</comments>
      <pubDate>Thu, 09 Oct 2025 08:53:20 +0000</pubDate>
      <size>1000000000</size>
      <link>http://127.0.0.1:9696/1/download?apikey=0123456789abcdef&amp;link=dTFaTVp0WWZk&amp;file=Money.Heist</link>
      <category>5000</category>
      <enclosure url="http://127.0.0.1:9696/1/download?apikey=0123456789abcdef&amp;link=dTFaTVp0WWZk&amp;file=Money.Heist" length="1000000000" type="application/x-nzb" />
      <${prefix}:attr name="category" value="5040" />
${languages.map((language) => `      <${prefix}:attr name="language" value="${language}" />\n`).join("")}      <${prefix}:attr name="genre" value="" />
      <${prefix}:attr name="tvdbid" value="900001" />
    </item>`;

  test.each([
    ["newznab", "http://www.newznab.com/DTD/2010/feeds/attributes/"],
    ["torznab", "http://torznab.com/schemas/2015/feed"],
  ])("is tagged in the titles of its French items alone: %s", (prefix, namespace) => {
    const marked = `<?xml version="1.0" encoding="UTF-8"?>
<rss version="1.0" xmlns:atom="http://www.w3.org/2005/Atom" xmlns:${prefix}="${namespace}">
  <channel>
    <atom:link rel="self" type="application/rss+xml" />
    <title>Prowlarr</title>
${item(prefix, "Money.Heist.S01E01.⟦MULTi.VFF.⟧1080p.WEB.H264-GRP", "English", "French")}
${item(prefix, "Money.Heist.S01E01.MULTi⟦.VFF⟧.1080p.WEB.H264-GRP2", "German, French ")}
${item(prefix, "Tom &amp; Jerry's Été 2021 ⟦MULTi.VFF ⟧1080p WEB", "French")}
${item(prefix, "Money.Heist.S01E01.VFF.1080p.WEB.H264-GRP3", "French")}
${item(prefix, "Money.Heist.S01E01.1080p.WEB.H264-GRP4", "English", "Frisian")}
${item(prefix, "Money.Heist.S01E01.1080p.WEB.H264-GRP5")}
  </channel>
</rss>`;
    expectTags(marked);
    const titles: string[] = [];
    const { items, french, tags } = tagFeed(Buffer.from(before(marked)), (title) => void titles.push(title));
    expect([items, french, tags.length]).toEqual([6, 4, 3]);
    expect(titles[2]).toBe("Tom & Jerry's Été 2021 1080p WEB");
  });
});

describe("an item is French", () => {
  const others = ["Frisian", "VOSTFR", "English", "German &amp; English", "French subtitles"].map(languageTag);

  test.each([1, 2, 3, 4, 5, 6])("when its language attribute number %d is French", (position) =>
    expectTags(feedOf(TITLE + others.toSpliced(position - 1, 0, FRENCH).join("\n"))),
  );

  test("when several attributes are French, and gets one tag", () =>
    expectTags(feedOf(TITLE + FRENCH + languageTag("Français") + languageTag("VFF"))));

  test.each([
    ["another prefix", '<torznab:attr name="language" value="French"/>'],
    ["an unknown prefix", '<x-y.z:attr name="language" value="French"/>'],
    ["no prefix", '<attr name="language" value="French"/>'],
    ["value before name", '<newznab:attr value="French" name="language"/>'],
    ["other attributes around", '<newznab:attr id="1" value="French" x="" name="language" type="a"/>'],
    ["single quotes", "<newznab:attr name='language' value='French'/>"],
    ["a quote in quotes", `<newznab:attr name="language" value='"French"'/>`],
    ["spaces around =", '<newznab:attr name = "language" value\t=\n"French" />'],
    ["line breaks", '<newznab:attr\r\n  name="language"\r\n  value="French"\r\n/>'],
    ["spaces in values", '<newznab:attr name=" language " value=" French "/>'],
    ["> in the value", '<newznab:attr name="language" value="English > French"/>'],
    ["/> in another value", '<newznab:attr note="/>" name="language" value="French"/>'],
    ["name in capitals", '<newznab:attr name="LANGUAGE" value="French"/>'],
    ["an end tag", '<newznab:attr name="language" value="French"></newznab:attr \n>'],
    ["text inside", '<newznab:attr name="language" value="French">audio</newznab:attr>'],
    ["a comment inside", '<newznab:attr name="language" value="French"><!-- audio --></newznab:attr>'],
    ["decimal and hexadecimal references", '<newznab:attr name="language" value="&#70;r&#x65;nch"/>'],
    ["an accent as reference", '<newznab:attr name="language" value="Fran&#231;ais"/>'],
    ["&amp; between languages", '<newznab:attr name="language" value="English &amp; French"/>'],
    ["an unknown entity", '<newznab:attr name="language" value="&unknown;, French"/>'],
    ["accents", '<newznab:attr name="language" value="Français"/>'],
    ["a long comment behind it", `<newznab:attr name="language" value="French"/><!--${"c".repeat(4000)}-->`],
  ])("when the attribute is written with %s", (_, spelling) => {
    expectTags(feedOf(TITLE + spelling));
    expectTags(feedOf(`<guid>1</guid>\n${spelling}\n<size>1</size>${TITLE}`));
  });

  test("when the attribute's value is in ISO-8859-1", () =>
    expectTags(feedOf(TITLE + languageTag("Français")), "latin1"));
});

describe("an item is not French", () => {
  test.each([
    ["no language attribute", '<newznab:attr name="category" value="5000"/>'],
    ["an attribute of another name", '<newznab:attr name="subtitle_language" value="French"/>'],
    ["subs that are French", '<newznab:attr name="subs" value="French language"/>'],
    ["a value in the element, not the attribute", '<newznab:attr name="language">French</newznab:attr>'],
    ["an element named language", "<language>French</language>"],
    ["an element language with attributes", '<language name="language" value="French"/>'],
    ["an element that ends in attr", '<newznab:myattr name="language" value="French"/>'],
    ["an element that begins with attr", '<newznab:attribute name="language" value="French"/>'],
    ["an attribute called __proto__", '<newznab:attr __proto__="x" name="language" value="French"/>'],
    ["the value twice encoded", languageTag("Fran&amp;#231;ais")],
    ["the attribute in a comment", `<!-- ${FRENCH} -->`],
    ["the attribute in CDATA", `<description><![CDATA[${FRENCH}]]></description>`],
    ["the attribute in a processing instruction", `<?x ${FRENCH} ?>`],
    ["the attribute escaped", "<description>&lt;attr name='language' value='French'/&gt;</description>"],
    ["the attribute in a value", `<x y='attr name="language" value="French"'/>`],
  ])("with %s", (_, content) => {
    expectTags(feedWith(`<item>${PLAIN_TITLE}${content}</item>`, FRENCH_ITEM));
    expectTags(feedWith(FRENCH_ITEM, `<item><size>1</size>${content}\n${PLAIN_TITLE}</item>`));
  });

  test.each([
    ["in the channel", feedWith(FRENCH, `<item>${PLAIN_TITLE}</item>`, FRENCH)],
    ["in the item before it", feedWith(FRENCH_ITEM, `<item>${PLAIN_TITLE}</item>`)],
    ["in an item without title before it", feedWith(`<item>${FRENCH}</item>`, `<item>${PLAIN_TITLE}</item>`)],
    ["behind </item >", feedWith(`<item>${PLAIN_TITLE}</item >${FRENCH}`)],
    ["in a DOCTYPE", `<!DOCTYPE rss [<!ENTITY x '${FRENCH_ITEM.replace(/⟦.*⟧/, "")}'>]>${feedOf(PLAIN_TITLE)}`],
    ["beside self-closed items", feedWith("<item/>", FRENCH, `<item />${PLAIN_TITLE}${FRENCH}`)],
    ["in an element that is no item", feedWith(`<items>${PLAIN_TITLE}${FRENCH}</items>`)],
  ])("when a French attribute stands %s", (_, feed) => expectTags(feed));
});

describe("the tag goes into the item's own title", () => {
  test.each([
    ["with attributes", "<title type=\"text\" x='>'>Film.2019.⟦MULTi.VFF.⟧1080p.WEB</title>"],
    ["with spaces in its tags", "<title \n>Film.2019.⟦MULTi.VFF.⟧1080p.WEB</title\n>"],
    ["in CDATA", "<title><![CDATA[Film.2019.⟦MULTi.VFF.⟧1080p.WEB]]></title>"],
    ["in CDATA, with white space", "<title>\n <![CDATA[ Film.2019.⟦MULTi.VFF.⟧1080p.WEB ]]>\n</title>"],
    ["in CDATA, before the tag's place", "<title><![CDATA[Film]]>.2019.⟦MULTi.VFF.⟧1080p.WEB</title>"],
    ["in three sections", "<title><![CDATA[Fi]]>lm<![CDATA[.2019.⟦MULTi.VFF.⟧10]]>80<![CDATA[p.WEB]]></title>"],
    ["in CDATA that reads like markup", "<title><![CDATA[<i>&amp;</i> 2019 ⟦MULTi.VFF ⟧1080p]]></title>"],
    ["with &amp;", "<title>Tom &amp; Jerry 2021 ⟦MULTi.VFF ⟧1080p</title>"],
    ["with references", "<title>&#201;t&#xe9;.&lt;3.&quot;x&quot;.&apos;.&gt;.2021.⟦MULTi.VFF.⟧1080p</title>"],
    ["with a year as references", "<title>Film.&#50;&#48;&#x31;&#x39;.⟦MULTi.VFF.⟧1080p</title>"],
    ["with the tag before a reference", "<title>Film.2019.⟦MULTi.VFF.⟧&#49;080p.WEB</title>"],
    ["with an emoji as reference", "<title>&#x1F600;.Film.2019.⟦MULTi.VFF.⟧1080p</title>"],
    ["with unknown entities", "<title>&nbsp;Film&eacute;&x;.2019.⟦MULTi.VFF.⟧1080p</title>"],
    ["with an unknown entity at the tag's place", "<title>Film.2019.&HDR;⟦.MULTi.VFF.⟧</title>"],
    ["with one after a known entity", "<title>A&amp;B.2019&x-1080p;⟦.MULTi.VFF.⟧</title>"],
    ["with references out of range", "<title>&#0;&#xD800;&#99999999999;.2019.⟦MULTi.VFF.⟧1080p</title>"],
    ["with white space around", "<title> \t\r\n Film.2019.⟦MULTi.VFF.⟧1080p.WEB \r\n </title>"],
    ["with white space as references", "<title>&#32;&#10;Film.2019⟦.MULTi.VFF⟧&#32;</title>"],
    ["with a line break inside", "<title>Film\r\n2019.⟦MULTi.VFF.⟧1080p.WEB</title>"],
    ["with accents", "<title>L'Été.à.la.façon.2019.⟦MULTi.VFF.⟧1080p.Été-ÉQUIPE</title>"],
    ["with accents, references and CDATA", "<title>É&#233;é&amp;<![CDATA[é&]]>é.2019.⟦MULTi.VFF.⟧1080p.é</title>"],
    ["in Japanese, in CDATA", "<title><![CDATA[鬼滅の刃 2019 ⟦MULTi.VFF ⟧1080p 日本]]></title>"],
    ["with emoji", "<title>🎬👩‍👩‍👧 Film 2019 ⟦MULTi.VFF ⟧1080p 🇫🇷</title>"],
    ["with NUL bytes", "<title>\0Fi\0lm.2019.⟦MULTi.VFF.⟧1080p\0</title>"],
    [
      "of 300 characters, however long they are written",
      `<title>Film.2019.⟦MULTi.VFF.⟧1080p.${"&amp;".repeat(280)}</title>`,
    ],
  ])("%s", (_, title) => {
    expectTags(feedOf(title + FRENCH));
    expectTags(feedOf(`<guid>1</guid>\n${FRENCH}\n${title}\n<size>1</size>`));
    expectTags(feedWith("<title>Été 🎬</title>", `<item>${title}${FRENCH}</item>`, FRENCH_ITEM));
  });

  test("not if it is written with more than 3,000 bytes", () => {
    const title = (zeros: number) =>
      `<title>Film.2019.⟦MULTi.VFF.⟧1080p.${`&#${"0".repeat(zeros)}65;`.repeat(200)}</title>`;
    expectTags(feedOf(title(9) + FRENCH));
    expectTags(before(feedOf(title(10) + FRENCH)));
  });

  test("in ISO-8859-1", () => {
    expectTags(feedOf(`<title>L'Été à l'île.2019.⟦MULTi.VFF.⟧1080p.Été</title>${FRENCH}`), "latin1");
    expectTags(feedOf(`<title>É<![CDATA[é]]>&amp;é.2019.⟦MULTi.VFF.⟧1080p.Été</title>${FRENCH}`), "latin1");
  });

  test.each(["\xC3", "\x80\xBF", "\xC0\xAF", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xFF\xFE", "\xC3\xA9.\xE9"])(
    "with broken UTF-8: %j",
    (broken) => {
      expectTags(feedOf(`<title>${broken}Film${broken}.2019.⟦MULTi.VFF.⟧1080p.${broken}</title>${FRENCH}`), "latin1");
      expectTags(feedOf(`<title>Film.2019.⟦MULTi.VFF.⟧1080p</title><x>${broken}</x>${FRENCH}`), "latin1");
    },
  );

  test.each([
    ["the channel's", feedWith(PLAIN_TITLE, FRENCH_ITEM, PLAIN_TITLE)],
    ["one in an image of the channel", feedWith(`<image>${PLAIN_TITLE}</image>`, FRENCH_ITEM)],
    ["one inside another element before", feedOf(`<media:content>${PLAIN_TITLE}</media:content>${TITLE}${FRENCH}`)],
    ["one inside another element after", feedOf(`${TITLE}${FRENCH}<source>${PLAIN_TITLE}</source>`)],
    ["one inside another element, with no own", feedOf(`<a>${PLAIN_TITLE}</a>${FRENCH}`)],
    ["one two elements deep", feedOf(`<a><b>${PLAIN_TITLE}</b>\n</a>${TITLE}${FRENCH}`)],
    ["one in a comment", feedOf(`<!-- ${PLAIN_TITLE} -->${TITLE}${FRENCH}`)],
    ["one in CDATA", feedOf(`<description><![CDATA[</item>${PLAIN_TITLE}]]></description>${TITLE}${FRENCH}`)],
    ["one in a processing instruction", feedOf(`<?x ${PLAIN_TITLE} ?>${TITLE}${FRENCH}`)],
    ["one with a prefix", feedOf(`<media:title>Film.2019.1080p.WEB</media:title>${TITLE}${FRENCH}`)],
    ["one that only begins alike", feedOf(`<titles>Film.2019.1080p</titles><title-x>a</title-x>${FRENCH}`)],
    ["one in another letter case", feedOf(`<Title>Film.2019.1080p</Title>${FRENCH}`)],
    ["the text after a self-closed one", feedOf(`<title a='1' />Film.2019.1080p.WEB${FRENCH}`)],
    ["a second one", feedOf(`${TITLE}${FRENCH}<size>1</size>${PLAIN_TITLE}`)],
  ])("and into no other: %s", (_, feed) => expectTags(feed));

  test.each([
    ["is missing", ""],
    ["is empty", "<title></title>"],
    ["is self-closed", "<title/>"],
    ["is white space", "<title> \n\t&#32;</title>"],
    ["is an empty CDATA section", "<title><![CDATA[]]></title>"],
    ["holds elements", "<title>Film <b>2019</b> 1080p</title>"],
    ["holds a comment", "<title>Film <!-- 2019 --> 1080p</title>"],
    ["holds a processing instruction", "<title>Film <?x y?> 1080p</title>"],
    ["is French already", "<title>Film.2019.FRENCH.1080p.WEB</title>"],
    ["has 301 characters", `<title>${"Film.2019.1080p.WEB-".padEnd(301, "x")}</title>`],
    ["has 100,000 characters", `<title><![CDATA[${"Film.2019.1080p.WEB-".padEnd(100_000, "é")}]]></title>`],
  ])("where it %s, the item stays, and the next one is tagged", (_, title) =>
    expectTags(feedOf(title + FRENCH, TITLE + FRENCH)),
  );
});

describe("every other byte is the backend's own", () => {
  const decoy = `<item><title>Decoy.2019.1080p.WEB</title>${FRENCH}</item>`;

  test.each([
    ["comments that hold items", feedWith(`<!-- ${decoy} -->`, FRENCH_ITEM, `<!--${decoy}-->`)],
    ["a comment with a hyphen, a quote and an end tag", feedWith(`<!-- - " ' </channel> & < -->`, FRENCH_ITEM)],
    ["comments between an item's elements", feedOf(`<!--a-->${TITLE}<!-- ${decoy} -->${FRENCH}<!---->`)],
    ["CDATA that holds items", feedOf(`<description><![CDATA[${decoy}</item>]]></description>${TITLE}${FRENCH}`)],
    ["CDATA with a lone ]] and >", feedOf(`<d><![CDATA[]] ]> > ]]]]><![CDATA[>]]></d>${TITLE}${FRENCH}`)],
    ["processing instructions that hold items", feedWith(`<?x ${decoy} ?>`, FRENCH_ITEM)],
    ["a processing instruction at its start", `<?x ${decoy} ?><rss>${FRENCH_ITEM}</rss>`],
    ["one that begins like <?xml", `<?xml-x ${decoy} ?><rss>${FRENCH_ITEM}</rss>`],
    ["a style sheet", feedOf(TITLE + FRENCH).replace("\n", '\n<?xml-stylesheet href="a.xsl?b>&"?>')],
    ["CRLF", feedOf(`\r\n  ${TITLE}\r\n  ${FRENCH}\r\n`).replaceAll("\n", "\r\n")],
    ["a byte-order mark", `\uFEFF${feedOf(TITLE + FRENCH)}`],
    ["> in text and values", feedOf(`<d a=">" b='>'>a > b</d>${TITLE}${FRENCH}`)],
    ["a DOCTYPE", `<!DOCTYPE rss SYSTEM "x.dtd">${feedOf(TITLE + FRENCH)}`],
    ["</item > and </items>", feedWith(`<item>${TITLE}<items></items>${FRENCH}</item >`, FRENCH_ITEM)],
    [
      "an item longer than a part of it",
      feedWith(FRENCH_ITEM, `<item>${"<a>b</a>".repeat(40_000)}${TITLE}${FRENCH}</item>`, FRENCH_ITEM),
    ],
    ["spaces in tags", feedWith(`<item \n>${TITLE}<d >x</d  ><e\n></e\t>${FRENCH}</item>`)],
    ["an element of a million attributes", feedOf(`${TITLE}<attr${' b="c"'.repeat(1_000_000)}/>${FRENCH}`)],
    ["an item without end", feedWith(`<item>${PLAIN_TITLE}`, FRENCH_ITEM)],
    ["elements named like Object's own", feedOf(`<constructor/><__proto__>x</__proto__>${TITLE}${FRENCH}`)],
    ["200 elements around the title", feedOf("<a>x</a>\n".repeat(200) + TITLE + "<b/>".repeat(200) + FRENCH)],
    ["12,000 items", feedWith((FRENCH_ITEM + `<item>${PLAIN_TITLE}</item>\n`.repeat(3)).repeat(3000))],
  ])("in a feed with %s", (_, feed) => expectTags(feed));

  test("in a feed of 20,000 items; one of more stays, and says how many it has at least", () => {
    const most = Buffer.from(before(feedWith(FRENCH_ITEM.repeat(20_000))));
    const { items, tags } = tagFeed(most);
    expect([items, tags.length]).toEqual([20_000, 20_000]);
    const more = Buffer.from(before(feedWith(FRENCH_ITEM.repeat(20_001))));
    expect(tagFeed(more)).toEqual({ items: 20_001, french: 0, tags: [] });
  });

  test("in a feed that is a part of a larger buffer", () => {
    const marked = feedOf(TITLE + FRENCH);
    const whole = Buffer.from(`</x>${before(marked)}<y`);
    const { result } = tagged(new Uint8Array(whole.buffer, whole.byteOffset + 4, whole.length - 6));
    expect(result).toBe(after(marked));
  });

  test.each([1, 10_000, 100_000, 131_000, 200_000])("in a feed with %d bytes between its tags", (length) => {
    expectTags(feedWith(...Array.from({ length: 20 }, () => FRENCH_ITEM + "x".repeat(length))));
  });

  test("in a feed with a tag at the end of a chunk of 128 KiB", () => {
    for (let at = 131_050; at <= 131_080; at++) {
      const item = `<item>${TITLE}${FRENCH}</item>`;
      expectTags("x".repeat(at - item.indexOf("⟦")) + item + FRENCH_ITEM);
    }
  });

  test("in a feed with an entity bomb, of which nothing is expanded", () => {
    const entities = Array.from({ length: 30 }, (_, n) => `<!ENTITY e${n + 1} "${`&e${n};`.repeat(100)}">`);
    const bomb = `<!DOCTYPE rss [<!ENTITY e0 "French">${entities.join("")}]>`;
    expectTags(
      `${bomb}<rss>${FRENCH_ITEM}<item><title>&e30; 2019 ⟦MULTi.VFF ⟧1080p</title>&e30;${FRENCH}</item></rss>`,
    );
    expectTags(`${bomb}<rss><item>${PLAIN_TITLE}${languageTag("&e0;")}${languageTag("&e30;")}</item></rss>`);
  });

  test("in a feed in UTF-16, which stays as it is", () => {
    const utf16 = Buffer.from(`\uFEFF${before(feedOf(TITLE + FRENCH))}`, "utf16le");
    expect(tagged(utf16).result).toBe(utf16.toString("latin1"));
  });
});

describe(`random feeds (SEED=${SEED})`, () => {
  const NAMES = ["Film", "Été", "Tom & Jerry", "<3", "A > B", 'Say "Yes"', "L'Été à l'île", "鬼滅の刃", "🎬 Film"];
  const ENDINGS = [
    ".2019.1080p.WEB-GRP",
    " S01E02 720p",
    ".2021.MULTi.2160p",
    " S03",
    "_2016_1080p",
    ".2019.FRENCH.1080p",
  ];
  const LANGUAGES = [
    "French",
    "English",
    " Français ",
    "fr-FR",
    "VOSTFR",
    "English, French",
    "Frisian",
    "English > VFF",
  ];

  const escaped = (text: string) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
  const referenced = (text: string) => text.replace(/[^]/gu, (character) => `&#${character.codePointAt(0)};`);
  const inData = (text: string) => `<![CDATA[${text}]]>`;

  function randomFeed(dice: Dice): string {
    const written = (text: string) => {
      const [start, end] = [text.slice(0, 2), text.slice(2)];
      const ways = [
        escaped(text),
        inData(text),
        ` \n${escaped(text)} `,
        escaped(start) + inData(end),
        inData(start) + referenced(end),
      ];
      return dice.one(ways);
    };
    const language = () => {
      const quoted = dice.one([`"${escaped(dice.one(LANGUAGES))}"`, `'${referenced(dice.one(LANGUAGES))}'`]);
      const attributes = dice
        .shuffled([`name="language"`, `value = ${quoted}`, `note='a > b'`])
        .join(dice.one([" ", "\n  "]));
      return `<${dice.one(["newznab:", "torznab:", ""])}attr ${attributes}${dice.one(["/>", " />", "></attr>"])}`;
    };
    const hidden = `<item><title>Hidden.2019.1080p</title>${FRENCH}</item>`;
    const filler = () =>
      dice.one([
        "<guid>http://x/?a=b&amp;c=d</guid>",
        `<description>${inData(`${hidden}</title></item> & French`)}</description>`,
        "<media:group><title>Other.2019.1080p</title></media:group>",
        "<language>French</language>",
        `<!-- ${hidden} & < -->`,
        `<?x ${hidden} & ?>`,
        '<enclosure url="http://x/?a&amp;b" type="x>y" />',
      ]);
    const item = () => {
      const title = `<title${dice.one(["", " a='b>c'"])}>${written(dice.one(NAMES) + dice.one(ENDINGS))}</title>`;
      return `<item>${dice.shuffled([title, ...dice.some(0, 3, language), ...dice.some(0, 5, filler)]).join("\n")}</item>`;
    };
    return feedWith("<title>Été.2019.1080p</title>", ...dice.some(1, 6, item));
  }

  /** The feed's items, as a library reads them. */
  function read(feed: string): Record<string, any>[] {
    const options = { ignoreAttributes: false, attributeNamePrefix: "", trimValues: false, parseTagValue: false };
    const parser = new XMLParser({
      ...options,
      removeNSPrefix: true,
      htmlEntities: true,
      isArray: (name) => /^(item|attr)$/.test(name),
    });
    return parser.parse(feed).rss.channel.item;
  }
  const titleOf = (item: Record<string, any>): string => item["title"]["#text"] ?? item["title"];

  test("are tagged in their French items' titles, as a library reads them, and nowhere else", () => {
    many(2000, (dice) => {
      const feed = randomFeed(dice);
      const { result, own } = tagged(Buffer.from(feed));
      if (own !== Buffer.from(feed).toString("latin1")) return `A byte was changed:\n${feed}`;
      const [given, items] = [read(feed), read(Buffer.from(result, "latin1").toString())];
      for (const [n, item] of given.entries()) {
        const isInFrench = item["attr"]?.some(({ value }: { value: string }) => isFrench(value));
        const title = titleOf(item);
        const expected = isInFrench ? title.replace(title.trim(), () => tag(title.trim())) : title;
        if (titleOf(items[n]!) !== expected) return `${expected} was expected, not ${titleOf(items[n]!)}:\n${feed}`;
      }
      return items.length === given.length ? undefined : `Items were lost:\n${feed}`;
    });
  });

  test("cut, mixed and spoiled, never make it throw, or write outside of a title", () => {
    const noise =
      `< > & ' " / = ]]> <![CDATA[ --> <!-- ?> <?x <! </ /> <title> </title> <title/> <item> </item> <item/> <a> </a>
      &#2019; &amp; &#x; \0 \xFF \xC3 1080p S01E01 MULTi language French`.split(/\s+/);
    many(3000, (dice) => {
      let feed = Buffer.from(randomFeed(dice)).toString("latin1");
      for (const at of dice.some(1, 4, () => dice.below(feed.length)))
        feed = feed.slice(0, at) + dice.one(noise.concat(FRENCH)) + feed.slice(at + dice.one([0, 0, 1, 20, 200]));
      const { tags, own } = tagged(Buffer.from(feed, "latin1"));
      if (own !== feed) return `A byte was changed:\n${feed}`;
      // What stands in a section is no markup, wherever the tag is.
      const markup = feed.replace(/<!--[^]*?(-->|$)|<!\[CDATA\[[^]*?(\]\]>|$)|<\?[^]*?(\?>|$)/g, (section) =>
        " ".repeat(section.length),
      );
      for (const { at } of tags) {
        const title = markup.lastIndexOf("<title", at);
        const isInTitle = title >= 0 && !/<\/title|<item/.test(markup.slice(title, at));
        if (!isInTitle) return `The tag at ${at} is outside of a title:\n${feed}`;
      }
      return undefined;
    });
  });
});

// ─── Cost is linear, whatever comes ─────────────────────────────────────────────────────────────────────────────────

describe("a hostile feed of 4 MB takes less than 3 s, where an ordinary one takes 0.005 s", () => {
  const SIZE = 4_000_000;
  const fill = (part: string) => part.repeat(Math.ceil(SIZE / part.length));
  const numbered = (part: (n: number) => string) =>
    Array.from({ length: SIZE / part(0).length }, (_, n) => part(n)).join("");

  test.each([
    ["attribute tags without end", fill('<newznab:attr name="language" value="French"'), "/>"],
    ["attribute elements without end", fill('<attr name="language" value="French">'), ""],
    ["values of language without tags", fill('"language'), ""],
    ["comments without end", fill("<!-- "), "-->"],
    ["CDATA sections without end", fill("<![CDATA["), "]]>"],
    ["processing instructions without end", fill("<?x "), "?>"],
    ["attributes in one tag", `<a${fill(' b="c"')}`, "/>"],
    ["attributes in one language tag", `<attr name="language" value="French"${fill(' b="c"')}`, "/>"],
    ["lone <", fill("<"), ""],
    ["open item tags", fill("<item "), ">"],
    ["spaces in a tag", `<a${fill(" ")}`, "/>"],
    ["spaces around =", `<a b${fill(" ")}=${fill(" ")}`, '"c"/>'],
    ["a long element name", `<${fill("a")}`, "/>"],
    ["end tags that don't match", fill("<a>text</b>"), ""],
    ["deep nesting", fill("<a>"), fill("</a>")],
    ["nested items", fill("<item>"), fill("</item>")],
    ["nested titles", fill("<title>"), fill("</title>")],
    ["500,000 elements", fill("<a>b</a>"), ""],
    ["language and French after <", fill("<language French "), ""],
    ["French items without titles", fill(`<item>${FRENCH}</item>`), ""],
    [
      "20,000 French titles",
      numbered((n) => `<item><title>Film.${n}.2019.1080p</title>${FRENCH}</item>`.padEnd(200)),
      "",
    ],
    ["titles of 590 references", fill(`<item><title>${"&amp;".repeat(590)}</title>${FRENCH}</item>`), ""],
    ["20,000 languages", numbered((n) => `<item>${PLAIN_TITLE}${languageTag(`French ${n}`)}</item>`.padEnd(200)), ""],
    [
      "60,000 elements that look like a language",
      numbered((n) => `<attr a${n % 1300}="language" value="x">`.padEnd(60)),
      "",
    ],
    ["80,000 languages", numbered((n) => languageTag(`f${n}`).padEnd(50)), ""],
    ["20,000 languages of one item", numbered((n) => languageTag(`French sub ${n}`).padEnd(200)), ""],
    ...["Film.", "-", "1", " ", "S01E01", "[", "é", "🎬", "&amp;", "&", "]]", "<![CDATA[]]>"].map((part) => [
      `a title of ${part}`,
      `<title>${fill(part)}`,
      "</title>",
    ]),
    ...["a", "é", "French ", ", ", "&#70;", "&"].map((part) => [
      `a language of ${part}`,
      `<attr name="language" value="French ${fill(part)}`,
      '"/>',
    ]),
  ] as [string, string, string][])("%s", (_, open, close) => {
    const feeds = [
      FRENCH + open,
      feedWith(before(FRENCH_ITEM), open, before(FRENCH_ITEM)),
      feedOf(PLAIN_TITLE + open + FRENCH),
      feedOf(FRENCH + open + close + PLAIN_TITLE),
    ];
    for (const feed of feeds) {
      const bytes = Buffer.from(feed);
      const started = performance.now();
      tagFeed(bytes);
      expect(performance.now() - started).toBeLessThan(3000);
    }
  });
});

test.each([
  [
    "items that never end",
    `<item "><a!:attr name="language" value="French"></item `.repeat(1500) + "x".repeat(3_000_000),
  ],
  [
    "26 MB of languages as Prowlarr would not write them",
    `<item>${PLAIN_TITLE}${Array.from({ length: 800_000 }, (_, n) => `<attr name='language' value='X${n}'/>`).join("")}</item>`,
  ],
  [
    "31 MB of commas in one language",
    `<item>${PLAIN_TITLE}<attr name="language" value="f${",".repeat(31_000_000)}"/></item>`,
  ],
  [
    "20,000 elements of 600 attributes without a value",
    `<item><title>${")(french. ...-S".repeat(20)}</title><attr a='1'${" a".repeat(600)} name="language" value="fr"/></item>`.repeat(
      20_000,
    ),
  ],
])("%s take less than 2.5 s", (_, feed) => {
  const started = performance.now();
  tagFeed(Buffer.from(feed));
  expect(performance.now() - started).toBeLessThan(2500);
});

test("16 MB of attr elements that hold name= 500 times take less than 3 s", () => {
  const elements = Array.from({ length: 6000 }, (_, n) => `<attr a="language" ${"name=".repeat(530)}${n}>`);
  const feed = Buffer.from(feedOf(PLAIN_TITLE + elements.join("")));
  expect(feed.length).toBeGreaterThan(16_000_000);
  const started = performance.now();
  expect(tagFeed(feed)).toMatchObject({ items: 1, french: 0 });
  expect(performance.now() - started).toBeLessThan(3000);
});

// ─── A client, a backend, and the proxy between them ────────────────────────────────────────────────────────────────

const words = (text: string) => text.trim().split(/\s+/);
const item = (title: string, ...languages: string[]) =>
  `<item><title>${title}</title>${languages.map(languageTag).join("")}</item>`;
const searchResponse = (...items: string[]) =>
  `<?xml version="1.0"?>\n<rss xmlns:newznab="x"><channel>\n${items.join("\n")}\n</channel></rss>`;
const PLAIN_ITEM = item("Show.S01E02.1080p.WEB-GRP", "German");
const PLAIN_FEED = searchResponse(PLAIN_ITEM);
const FRENCH_FEED = searchResponse(item("Show.S01E01.1080p.WEB-GRP", "English", "French"), PLAIN_ITEM);
const TAGGED_FEED = FRENCH_FEED.replace("S01E01.", "S01E01.MULTi.VFF.");
const PACKED = zlib.gzipSync(FRENCH_FEED);

/** Waits until a condition holds. The limit only ends a test that fails. */
async function until(condition: () => unknown): Promise<void> {
  for (const end = performance.now() + 30_000; !(await condition()); await Bun.sleep(5))
    if (performance.now() > end) throw new Error(`It never came to this: ${condition}`);
}

/** A server of the test's own, once it listens. */
async function listening(server: Server, port = 0) {
  const sockets: Socket[] = [];
  server.on("connection", (socket: Socket) => void sockets.push(socket.on("error", () => {})));
  await once(server.listen(port, "127.0.0.1"), "listening");
  const end = () => void (server.close(), sockets.forEach((socket) => socket.destroy()));
  return { port: (server.address() as AddressInfo).port, sockets, requests: [] as Received[], [Symbol.dispose]: end };
}
type Backend = Awaited<ReturnType<typeof listening>>;

/** A request as the backend received it, its path and query byte for byte. */
type Received = { method: string; url: string; headers: IncomingHttpHeaders; body: string; socket: Socket };
type Reply = { status?: number; headers?: OutgoingHttpHeaders; body?: string | Uint8Array };
type Replies = (request: Received, response: ServerResponse) => Reply | void | Promise<Reply | void>;

/** A backend that answers with what `reply` returns. Where that is nothing, `reply` answers by itself, or never. */
async function backendThat(reply: Replies, port?: number): Promise<Backend> {
  const server = http.createServer(async (message, response) => {
    const { method, url, headers, socket } = message;
    const request = { method: method!, url: url!, headers, body: await text(message), socket };
    backend.requests.push(request);
    const answer = await reply(request, response);
    if (!answer) return;
    const { status = 200, body = "" } = answer;
    const length = status === 204 || status === 304 ? {} : { "content-length": Buffer.byteLength(body) };
    response.writeHead(status, { ...length, ...answer.headers }).end(body);
  });
  const backend = await listening(server, port);
  return backend;
}

/** A backend that writes these bytes to whoever asks, as no HTTP library would, and then ends or stays. */
function rawBackend(bytes: string, last: "ends" | "stays" = "ends"): Promise<Backend> {
  const answer = (socket: Socket) => (last === "ends" ? socket.end(bytes, "latin1") : socket.write(bytes, "latin1"));
  return listening(createServer((socket) => void socket.once("data", () => answer(socket))));
}

const XML = { "content-type": "application/rss+xml" };
const NZB = { "content-type": "application/x-nzb" };
const HTML = { "content-type": "text/html" };
const JSON_TYPE = { "content-type": "application/json" };
const ok = (): Reply => ({ headers: JSON_TYPE, body: "{}" });
const frenchFeed = (): Reply => ({ headers: XML, body: FRENCH_FEED });
/** A route of each kind that goes to the backend. */
const ROUTES = ["/3/api", "/3/download", "/api/v1/x"];

type Answer = { status: number; headers: IncomingHttpHeaders; text: string; bytes: Buffer };

/** A client of the proxy at this port. */
function clientOf(port: number, host = "127.0.0.1") {
  /** Sends `/path` or `METHOD /path` and headers byte for byte. The answer is still to be read. */
  const open = async (start: string, headers: OutgoingHttpHeaders = {}, ...body: string[]) => {
    const [path, method = "GET"] = start.split(" ").reverse();
    const fields = { Host: "proxy.test:8080", Connection: "keep-alive", ...headers };
    const request = http.request({ host, port, method, path, headers: fields, agent: false });
    for (const piece of body.slice(0, -1)) request.write(piece);
    request.end(body.at(-1));
    const [response] = (await once(request, "response")) as [http.IncomingMessage];
    return request.on("error", () => {}) && response;
  };
  /** The same, with the whole answer. Throws where that breaks off. */
  const ask = async (start: string, headers?: OutgoingHttpHeaders, ...body: string[]): Promise<Answer> => {
    const response = await open(start, headers, ...body);
    const bytes = Buffer.concat(await Array.fromAsync(response));
    return { status: response.statusCode!, headers: response.headers, text: bytes.toString(), bytes };
  };
  /** Writes what no HTTP library would, and stays connected. */
  const write = async (bytes: string) => {
    const socket = connect(port, host);
    const client = { socket, received: "", [Symbol.dispose]: () => void socket.destroy() };
    socket.on("data", (data: Buffer) => void (client.received += data.toString("latin1")));
    await once(socket, "connect");
    socket.on("error", () => {}).write(bytes, "latin1");
    return client;
  };
  /** The same, with what came back until the end of the connection. */
  const exchange = async (bytes: string): Promise<string> => {
    using client = await write(bytes);
    await until(() => client.socket.destroyed);
    return client.received;
  };
  const refuses = async () => !(await write("").catch(() => undefined))?.socket.destroy();
  return { port, open, ask, write, exchange, refuses };
}
const get = (target: string) => `GET ${target} HTTP/1.1\r\nHost: x\r\n\r\n`;

/** The proxy in this process, and what it logged. */
function proxyTo(url: string, env: Record<string, string> = {}) {
  const logged: Record<"debug" | "info" | "warn", string[]> = { debug: [], info: [], warn: [] };
  const to = (lines: string[]) => (line: string) => void lines.push(line);
  const log = { debug: to(logged.debug), info: to(logged.info), warn: to(logged.warn) };
  const server = serve({ ...readConfig({ ...env, BACKEND_URL: url }), port: 0, log });
  return { ...clientOf(server.port!), logged, [Symbol.dispose]: (): void => void server.stop(true) };
}

/** The same, in front of a backend of the test's own. */
async function proxyWith(what: Replies | Promise<Backend>, env?: Record<string, string>, toUrl = urlOf) {
  const ends = new DisposableStack();
  const backend = ends.use(await (typeof what === "function" ? backendThat(what) : what));
  const proxy = ends.use(proxyTo(toUrl(backend), env));
  return { ...proxy, backend, requests: backend.requests, [Symbol.dispose]: () => ends.dispose() };
}
const urlOf = ({ port }: { port: number }) => `http://127.0.0.1:${port}`;
/** A backend's address with what must never come out again. */
const secretUrlOf = ({ port }: { port: number }) => `http://user:hunter2@127.0.0.1:${port}/it's&co`;

/** A port that nothing uses, and that no system gives out by itself (Linux does from 32768 on). */
async function freePort(): Promise<number> {
  const port = ++lastPort;
  return (await clientOf(port).refuses()) ? port : freePort();
}
let lastPort = 10_000 + Math.floor(Math.random() * 20_000);

/** The program with its command line, in a process of its own. Nothing that it does goes by way of HTTP_PROXY. */
function run(args: string[], env: Record<string, string | undefined> = {}, input = "") {
  // Files, because a pipe may never end while much runs side by side (Bun 1.4.5).
  const folder = mkdtempSync(`${tmpdir()}/language-tag-proxy-`);
  const [PATH, nowhere] = [process.env["PATH"], "http://127.0.0.1:1"];
  const child = Bun.spawn([process.execPath, "proxy.ts", ...args], {
    cwd: import.meta.dir,
    env: { PATH, HTTP_PROXY: nowhere, http_proxy: nowhere, ALL_PROXY: nowhere, ...env },
    stdio: [new Blob([input]), Bun.file(`${folder}/stdout`), Bun.file(`${folder}/stderr`)],
  });
  const stdout = () => readFileSync(`${folder}/stdout`, "utf8");
  const stderr = () => readFileSync(`${folder}/stderr`, "utf8");
  const ended = async () => ({ code: await child.exited, stdout: stdout(), stderr: stderr() });
  const end = () => void (child.kill("SIGKILL"), rmSync(folder, { recursive: true }));
  return { child, stdout, stderr, ended, [Symbol.dispose]: end };
}

/** A proxy in a process of its own, once it serves. */
async function runningProxy(env: Record<string, string>, ...args: string[]) {
  const client = clientOf(await freePort());
  const proxy = run(args, { PORT: String(client.port), ...env });
  await until(async () => proxy.child.exitCode !== null || !(await client.refuses()));
  if (proxy.child.exitCode !== null) throw new Error(`The proxy did not start: ${proxy.stderr()}`);
  expect((await client.ask("/health")).status).toBe(200);
  return { ...proxy, ...client };
}

/** The sentence in an error of the proxy's own: in an indexer's error document or in JSON. */
function sentenceIn({ headers, text }: Answer, type: "rss+xml" | "json"): string {
  expect(headers["content-type"]).toStartWith(`application/${type}`);
  const sentence = expect.stringMatching(/^[^\n]+\.$/);
  if (type === "json") expect(JSON.parse(text)).toEqual({ error: sentence });
  if (type === "json") return JSON.parse(text).error;
  expect(XMLValidator.validate(text)).toBe(true);
  const { error } = new XMLParser({ ignoreAttributes: false, attributeNamePrefix: "", htmlEntities: true }).parse(text);
  expect(error).toEqual({ code: "900", description: sentence });
  return error.description;
}

// ─── The way through ────────────────────────────────────────────────────────────────────────────────────────────────

describe.concurrent("a request", () => {
  const TARGETS = words(`
    /3/api  /3/api?  /3/api?q=?  /0/api?t=caps  /0012/api  /123456/api  http://other.example/3/api
    /3/download  /3/download?link=x  /api/v1/indexer  /api/v1/indexer/3/schema  /api/v1/release..name/a...b/.config
    /3/api?t=tvsearch&cat=5000,5030/5040&q=a+b%2bc%2Bd%20e  /3/api?t=search&apikey=KEY&q=l%27%C3%A9t%c3%a9
    /3/api?apikey=KEY&t=search&q=  /3/api?q=&q=&empty&&x=1&x=2&=&=y  /3/api?q=%zz&r=100%
    /3/api?q=a|b^c\`d{e}f[g]\\h  /3/api?u=http://host:80/a/../b?c=d  /3/api?;:@!$()*~,-._
    /3/download?apikey=KEY&link=aGVs/bG8+%3D%3D==&file=L%C3%A9on
    /api/v1/a,b;c:d@e/%zz/f+g%2Bh%20i/[j]|k  /api/v1/indexer//3/?x=..%2f..%2f
  `);
  test.each(TARGETS)("reaches the backend byte for byte: %s", async (target) => {
    using proxy = await proxyWith(frenchFeed);
    const url = target.replace("http://other.example", "");
    for (const method of ["GET", "HEAD", "OPTIONS"]) {
      expect((await proxy.ask(`${method} ${target}`)).status).toBe(200);
      expect(proxy.requests.pop()).toMatchObject({ method, url });
    }
    // HTTP/1.0 needs no Host.
    const answer = await proxy.exchange(`GET ${url} HTTP/1.0\r\n\r\n`);
    expect(answer).toEndWith(`\r\n\r\n${/^.\d+.api/.test(url) ? TAGGED_FEED : FRENCH_FEED}`);
    expect(proxy.requests.pop()!.headers).not.toHaveProperty("x-forwarded-host");
    expect(proxy.requests).toEqual([]);
  });

  // Some containers have no IPv6.
  const LOOPBACK = JSON.stringify(networkInterfaces()).includes('"::1"') ? "::1" : "127.0.0.1";
  const ADDRESS = { "X-Forwarded-For": "10.1.2.3", "X-Forwarded-Host": "tv.example", "X-Forwarded-Proto": "https" };
  test.each([
    ["its client's address, and its own", "127.0.0.1", {}, ["127.0.0.1", "proxy.test:8080", "http"]],
    ["an IPv6 client's address", LOOPBACK, {}, [LOOPBACK, "proxy.test:8080", "http"]],
    ["what a proxy before it says", "127.0.0.1", ADDRESS, ["10.1.2.3, 127.0.0.1", "tv.example", "https"]],
  ])("names the backend as its host, and tells %s", async (_, from, sent, told) => {
    using proxy = await proxyWith(ok);
    await clientOf(proxy.port, from).ask("/3/api", sent);
    const { headers } = proxy.requests[0]!;
    const heard = words("host x-forwarded-for x-forwarded-host x-forwarded-proto").map((name) => headers[name]);
    expect(heard).toEqual([`127.0.0.1:${proxy.backend.port}`, ...told]);
  });

  test.each([...ROUTES, "/3/api?plain"])(
    "to %s loses its connection's headers alone, and its answer too",
    async (path) => {
      const names = words(`
      Keep-Alive  Proxy-Connection  Proxy-Authenticate  Proxy-Authorization  TE  Trailer  Upgrade  x-Secret-Hop  X-Other
    `);
      const gone = Object.fromEntries(names.map((name) => [name, "x"]));
      const connection = { Connection: ["close, X-SECRET-hop", "x-other"], "Transfer-Encoding": "chunked", ...gone };
      const accept = { accept: "application/rss+xml, text/rss+xml", "accept-encoding": "gzip, br" };
      const asked = { ...accept, "user-agent": "Sonarr/4.0 (ubuntu)", cookie: "a=1; b=2", "if-none-match": '"x"' };
      const cache = { "cache-control": "max-age=31536000, public", date: "Sat, 21 Nov 2026 10:00:00 GMT" };
      const file = { ...XML, "content-disposition": "attachment; filename=a.nzb" };
      const answered = { ...cache, ...file, server: "Kestrel", "x-kept": "yes", "set-cookie": ["a=1; Path=/", "b=2"] };
      using proxy = await proxyWith((_, response) => {
        response.writeHead(200, { ...connection, ...answered }).end(path.includes("plain") ? PLAIN_FEED : FRENCH_FEED);
      });
      const fields = { ...connection, ...asked, "x-accent": "caf\xe9" };
      const { headers } = await proxy.ask(`POST ${path}`, fields, "bo", "dy");
      const [request] = proxy.requests as [Received];
      expect(headers).toMatchObject(answered);
      const encoding = path.startsWith("/3/api") ? "gzip" : "gzip, br";
      const unchanged = { ...asked, "accept-encoding": encoding, "x-accent": expect.stringMatching(/^caf/) };
      expect(request.headers).toMatchObject(unchanged);
      for (const arrived of [headers, request.headers]) {
        expect(names.filter((name) => name.toLowerCase() in arrived)).toEqual([]);
        expect(arrived.connection ?? "close").toBeOneOf(["close", "keep-alive"]);
      }
    },
  );

  const BEARER = { authorization: "Bearer CLIENTKEY" };
  test.each([
    ["the client's key in the query", "", "/3/api?t=search&apikey=CLIENTKEY&q=x", {}, {}],
    ["the client's key in a header", "", "/api/v1/indexer", { "x-api-key": "CLIENTKEY" }, { "x-api-key": "CLIENTKEY" }],
    ["the client's key as a bearer", "", "/3/download?link=x", BEARER, BEARER],
    ["no key where the client has none", "", "/3/api?t=caps", {}, {}],
    ["what BACKEND_URL holds", "user:p%40ss@", "/3/api", {}, { authorization: `Basic ${btoa("user:p@ss")}` }],
    ["the client's bearer rather than that", "user:p%40ss@", "/3/api", BEARER, BEARER],
  ])("carries %s, and never the proxy's key", async (_, credentials, target, keys, expected) => {
    const env = { BACKEND_API_KEY: "PROXYKEY" };
    using proxy = await proxyWith(ok, env, ({ port }) => `http://${credentials}127.0.0.1:${port}`);
    await proxy.ask(target, keys);
    const [{ url, headers }] = proxy.requests as [Received];
    const sent = Object.entries(headers).filter(([name]) => name === "x-api-key" || name === "authorization");
    expect([url, Object.fromEntries(sent)]).toEqual([target, expected]);
    expect(JSON.stringify([url, headers])).not.toContain("PROXYKEY");
  });

  test("without a user agent brings none to the backend", async () => {
    using proxy = await proxyWith(ok);
    for (const path of ROUTES) await proxy.exchange(`GET ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
    for (const { headers } of proxy.requests) expect([headers["user-agent"], headers.accept]).toEqual(["", ""]);
    expect(proxy.requests).toHaveLength(ROUTES.length);
  });

  test.each(["nas:80", "nas.1:80", "[::1]:80", "/api/v1/x", "http://nas/3/api"])(
    "CONNECT %s is a 405, and never reaches the backend",
    async (target) => {
      using proxy = await proxyWith(ok);
      const answer = await proxy.exchange(`CONNECT ${target} HTTP/1.1\r\nHost: nas.1\r\nConnection: close\r\n\r\n`);
      expect(answer).toStartWith("HTTP/1.1 405 ");
      expect(answer).toContain("opens no tunnel");
      expect(proxy.requests).toEqual([]);
    },
  );

  test("that is slow to send its body doesn't count as a silent backend", async () => {
    using proxy = await proxyWith(ok, { BACKEND_TIMEOUT: "1" });
    using client = await proxy.write("POST /api/v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf");
    await Bun.sleep(1600);
    client.socket.write("half");
    await until(() => client.received.includes("\r\n\r\n{}"));
    expect([client.received.slice(0, 15), proxy.requests[0]!.body]).toEqual(["HTTP/1.1 200 OK", "halfhalf"]);
  });

  test("for the address itself is a page for a browser, with status 404", async () => {
    using proxy = await proxyWith(ok);
    const page = await proxy.ask("/", { accept: "text/html,application/xhtml+xml,*/*;q=0.8" });
    expect([page.status, page.headers["content-type"]]).toEqual([404, "text/plain;charset=utf-8"]);
    expect(page.text).toMatch(/language-tag-proxy.*\n[^]*Prowlarr Server/);
    expect(proxy.requests).toEqual([]);
  });

  test.each(["POST", "PUT", "DELETE", "PATCH"])("%s brings its body, of known length and in chunks", async (method) => {
    using proxy = await proxyWith(() => ({ status: 201, headers: JSON_TYPE, body: '{"id":7}' }));
    const body = JSON.stringify({ name: "été", padding: "x".repeat(70_000) });
    const headers = { ...JSON_TYPE, "content-length": String(Buffer.byteLength(body)) };
    const answer = await proxy.ask(`${method} /api/v1/indexer`, headers, body);
    expect(answer).toMatchObject({ status: 201, text: '{"id":7}' });
    await proxy.ask(`${method} /api/v1/x`, { "transfer-encoding": "chunked" }, body.slice(0, 10), body.slice(10));
    expect(proxy.requests).toMatchObject([
      { method, url: "/api/v1/indexer", body, headers },
      { method, url: "/api/v1/x", body },
    ]);
  });

  test("and its answer are passed on while they still come in", async () => {
    using proxy = await proxyWith(listening(http.createServer((message, response) => void message.pipe(response))));
    using client = await proxy.write("POST /3/download HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nfirst");
    await until(() => client.received.includes("first"));
    client.socket.write("second");
    await until(() => client.received.includes("second"));
  });

  test.each(["/prowlarr", "/prowlarr/"])("gets the URL base of http://nas%s, once", async (urlBase) => {
    using proxy = await proxyWith(ok, {}, (backend) => urlOf(backend) + urlBase);
    for (const target of words("/3/api?t=caps /prowlarr/3/api?t=caps /prowlarr/3/download?link=x /api/v1/indexer")) {
      await proxy.ask(target);
      expect(proxy.requests.pop()!.url).toBe(`/prowlarr${target.replace("/prowlarr", "")}`);
    }
    for (const rest of ["", "/", "3/api", "/initialize.json", "/prowlarr/3/api"])
      expect((await proxy.ask(`/prowlarr${rest}`)).status).toBe(404);
    expect(proxy.requests).toEqual([]);
    expect((await proxy.ask("/prowlarr/health")).status).toBe(200);
  });

  test.each([
    ["a Host", "HTTP/1.1\r\nHost: proxy.test:8080", false],
    ["no Host, as in HTTP/1.0", "HTTP/1.0", true],
    ["an empty Host", "HTTP/1.1\r\nHost:", true],
    ["an invalid Host", "HTTP/1.1\r\nHost: a b[", true],
    ["a Host that holds a path", "HTTP/1.1\r\nHost: x/api/v1/", true],
    ["a Host that holds a query", "HTTP/1.1\r\nHost: x/3/api?", true],
  ])("whose path is no route never reaches the backend, with %s", async (_, rest, mayRefuse) => {
    using proxy = await proxyWith(ok);
    const through: string[] = [];
    for (const target of words(`
      /  /?apikey=KEY  /initialize.json  /login  /healthy  /health/  //3/api  ///3/api  //x/3/api  /3  /3/  /3/apix
      /3/API  /x/api  /-3/api  /3/api/  /3/api/x  /3/download/  /3/download/x  /3%2fapi  /3/results/api  /api  /api/v1
      /api/v1/  /api/v1?x=1  /api/v1/?x=1  /api/v2/x  /api/v10/x  /API/v1/x  /x/api/v1/x
      /api/v1/..  /api/v1/../../initialize.json  /api/v1/./.././../initialize.json  /api/v1/..\\..\\initialize.json
      /api/v1/x/../../../initialize.json  /3/api/../../initialize.json  //3/api/../initialize.json
      /api/v1/%2e%2e/%2e%2e/initialize.json  /api/v1/%2E%2E/.%2e/initialize.json  /api/v1/..%2f..%2finitialize.json
      /api/v1/..%2F..%2Finitialize.json  /api/v1/%2e%2e%2f%2e%2e%2finitialize.json  /api/v1/x%2f%2e%2e
      /api/v1/x%2f..%2f..%2f..%2finitialize.json  /api/v1/x/.%2fy  /api/v1/..%5c..%5cinitialize.json
      /api/v1/%2e%2e%5C%2e%2e%5Cinitialize.json  /api/v1/%252e%252e/%252e%252e/initialize.json
      /api/v1/%252e%252e%252f%252e%252e%252finitialize.json  /api/v1/%25252e%25252e%25252finitialize.json
      /api/v1/..%255c..%255cinitialize.json  http://other.example  http://other.example/initialize.json
      http://other.example/api/v1/../../initialize.json  http://other.example/api/v1/%2e%2e/%2e%2e/initialize.json
      //[/api/v1/../../initialize.json  \\api\\v1\\..\\..\\initialize.json
    `)) {
      const answer = await proxy.exchange(`GET ${target} ${rest}\r\nConnection: close\r\n\r\n`);
      const isNoRoute = /^HTTP\/1\.1 404 [^]*\r\n\r\n\{"error":"No such route: .*\/<id>\/api.*\."\}$/.test(answer);
      // Bun itself refuses a path that doesn't begin with a slash.
      const isRefused = (mayRefuse || /^(?:\/\/\[|\\)/.test(target)) && answer.startsWith("HTTP/1.1 400 ");
      if (!isNoRoute && !isRefused) through.push(`${target}: ${answer}`);
    }
    expect([through, proxy.requests]).toEqual([[], []]);
  });
});

describe.concurrent("an answer", () => {
  const FEED = "application/rss+xml";
  const PATIENCE = { ...XML, "retry-after": "3600" };
  const ERROR = '<error code="900" description="été &amp; x"/>';
  const MAGNET = "magnet:?xt=urn:btih:C12FE1C06BBA254A9DC9F519B335AA7C1367A88A&dn=Name+of%20it&tr=udp://t:80";
  type Row = [what: string, paths: string[], status: number, headers: OutgoingHttpHeaders, body?: string | Buffer];
  test.each<Row>([
    ["redirects to an indexer", ROUTES, 301, { location: "http://indexer.test/get?passkey=KEY&x={a}|b" }],
    ["redirects to a magnet link", ROUTES, 302, { location: MAGNET }],
    ["redirects to the URL base", ROUTES, 307, { location: "/prowlarr/3/api?t=caps" }],
    ["redirects for good", ROUTES, 308, { location: "http://indexer.test/" }],
    ["refuses a key", ROUTES, 401, { "www-authenticate": "X" }],
    ...[400, 404, 410, 429, 500, 503].map((status): Row => [`is a ${status}`, ROUTES, status, PATIENCE, ERROR]),
    ["is a 204", ROUTES, 204, { etag: '"e"' }],
    ["is a 304", ROUTES, 304, { etag: '"e"' }],
    ["has a head alone", ROUTES.map((path) => `HEAD ${path}`), 200, { ...XML, "content-length": "12345", etag: '"e"' }],
    ...[401, 301].map((status): Row => [
      `is an empty ${status}, packed`,
      ["/3/api"],
      status,
      { "content-encoding": "gzip" },
    ]),
    ["is an error, packed in another way", ["/3/api"], 429, { ...PATIENCE, "content-encoding": "br" }, PACKED],
    ["has a packed head", ["HEAD /3/api"], 200, { ...XML, "content-length": "123", "content-encoding": "gzip" }],
    ["is a feed without French", ["/3/api"], 200, { ...XML, etag: '"e"', "accept-ranges": "bytes" }, PLAIN_FEED],
    ["is binary", ["/3/download"], 200, NZB, Buffer.from(Array.from({ length: 99_999 }, (_, n) => n * 7))],
    ["is a feed, but not 200", ["/3/api"], 201, XML, FRENCH_FEED],
    ["is a feed, but an error", ["/3/api"], 400, XML, FRENCH_FEED],
    ["is a feed, but not XML", ["/3/api"], 200, HTML, FRENCH_FEED],
    ["is a feed, but JSON of XML", ["/3/api"], 200, { "content-type": 'application/json; x="/xml"' }, FRENCH_FEED],
    ["is a feed, but of a type like XML", ["/3/api"], 200, { "content-type": "application/xmlish" }, FRENCH_FEED],
    ["is a feed, but has no type", ["/3/api"], 200, {}, FRENCH_FEED],
    ["is a feed, but no search", ["/3/download", "/api/v1/search"], 200, XML, FRENCH_FEED],
    ["is compressed, but no search", ["/3/download", "/api/v1/x"], 200, { ...XML, "content-encoding": "gzip" }, PACKED],
  ])("that %s comes back as it is", async (_, paths, status, headers, body = "") => {
    using proxy = await proxyWith(() => ({ status, headers, body }));
    for (const path of paths) {
      const answer = await proxy.ask(path);
      expect([answer.status, answer.headers["content-type"]]).toEqual([status, headers["content-type"] as any]);
      expect(answer.headers).toMatchObject(headers);
      expect(answer.bytes.equals(Buffer.from(body))).toBe(true);
    }
    // No redirect is followed.
    expect(proxy.requests).toHaveLength(paths.length);
  });

  test("to HEAD has no length where the backend tells none", async () => {
    const headers = { ...NZB, "transfer-encoding": "chunked" };
    using proxy = await proxyWith((_, response) => void response.writeHead(200, headers).end());
    expect((await proxy.ask("HEAD /3/download")).headers).not.toHaveProperty("content-length");
  });

  test.each([
    [FEED, "gzip", zlib.gzipSync],
    [`${FEED}; charset=utf-8`, "x-gzip", zlib.gzipSync],
    ["text/xml", "GZIP", zlib.gzipSync],
    ["application/xml;charset=UTF-8", "deflate", zlib.deflateSync],
    ["Application/RSS+XML", "gzip, identity", zlib.gzipSync],
  ] as const)("of type %s is tagged, in chunks and from %s", async (type, encoding, pack) => {
    using proxy = await proxyWith(async ({ url }, response) => {
      const feed = url.includes("french") ? FRENCH_FEED : PLAIN_FEED;
      const headers = { "content-type": type, "content-encoding": encoding };
      if (url.includes("packed")) return { headers, body: pack(feed) };
      response.writeHead(200, { "content-type": type });
      for (const piece of feed.match(/[^]{1,37}/g)!) response.write(piece) && (await Bun.sleep(1));
      response.end();
    });
    const feeds = { "french,packed": TAGGED_FEED, french: TAGGED_FEED, packed: PLAIN_FEED, neither: PLAIN_FEED };
    for (const [query, feed] of Object.entries(feeds)) {
      const { headers, text } = await proxy.ask(`/3/api?q=${query}`, { "accept-encoding": "gzip" });
      expect([headers["content-type"], headers["content-encoding"], text]).toEqual([type, undefined, feed]);
      expect(headers["content-length"] ?? String(feed.length)).toBe(String(feed.length));
    }
  });

  test("that is tagged loses the headers that describe the untagged one", async () => {
    const headers = { ...XML, etag: '"e"', "content-md5": "x", digest: "x", "accept-ranges": "bytes", "x-kept": "yes" };
    using proxy = await proxyWith(() => ({ headers, body: FRENCH_FEED }));
    const answer = await proxy.ask("/3/api");
    expect(answer).toMatchObject({ text: TAGGED_FEED, headers: { "x-kept": "yes" } });
    expect(words("etag content-md5 digest accept-ranges").filter((name) => name in answer.headers)).toEqual([]);
  });

  // 800 bytes of brotli can be a gigabyte, and Bun would unpack them before anything can count it.
  test.each(["br", "zstd", "compress", "x-foo", "gzip, br"])(
    "packed with %s is a 502 that names it",
    async (encoding) => {
      const body = encoding === "br" ? zlib.brotliCompressSync(Buffer.alloc(1_000_000)) : PACKED;
      using proxy = await proxyWith(() => ({ headers: { ...XML, "content-encoding": encoding }, body }));
      const answer = await proxy.ask("/3/api", { "accept-encoding": "gzip, deflate, br, zstd" });
      expect([answer.status, sentenceIn(answer, "rss+xml")]).toEqual([
        502,
        expect.stringContaining(`with ${encoding}:`),
      ]);
      expect(proxy.requests[0]!.headers["accept-encoding"]).toBe("gzip");
    },
  );

  test.each([99, 600])("with status %d, which HTTP does not have, is a 502 that says so", async (status) => {
    using proxy = await proxyWith(
      rawBackend(`HTTP/1.1 0${status} Odd\r\nContent-Length: 2\r\n\r\nok`.replace("0600", "600")),
    );
    for (const path of ROUTES) {
      const answer = await proxy.ask(path);
      expect([answer.status, answer.text]).toEqual([502, expect.stringContaining(`status ${status}`)]);
    }
  });

  test("to a search can be read though it is compressed and no feed", async () => {
    for (const [status, type] of [[400, FEED] as const, [200, "text/html"] as const]) {
      const headers = { "content-type": type, "content-encoding": "gzip" };
      using proxy = await proxyWith(() => ({ status, headers, body: PACKED }));
      const answer = await proxy.ask("/3/api");
      const plain = answer.headers["content-encoding"] ? zlib.gunzipSync(answer.bytes) : answer.bytes;
      expect([answer.status, plain.toString()]).toEqual([status, FRENCH_FEED]);
    }
  });

  test("to one of eight large searches at once is its own, however late its client reads", async () => {
    const release = (search: number, n: number) =>
      `<item><title>Show.${search}.S01E${n}.⟦MULTi.VFF.⟧1080p</title>${FRENCH}${"x".repeat(1000)}</item>`;
    const feeds = Array.from({ length: 8 }, (_, search) =>
      feedWith(...Array.from({ length: 4000 }, (_, n) => release(search, n))),
    );
    using proxy = await proxyWith(({ url }) => ({ headers: XML, body: before(feeds[Number(url.at(-1))]!) }));
    const answers = await Promise.all(feeds.map((_, search) => proxy.open(`/3/api?q=${search}`)));
    for (const [search, answer] of answers.entries()) expect((await text(answer)) === after(feeds[search]!)).toBe(true);
  });
});

// ─── Faults ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Each route answers with this error of the proxy's own, and nothing in it or in the log is secret. */
async function expectError(proxy: ReturnType<typeof proxyTo>, status: number, sentence: RegExp): Promise<void> {
  const seen: unknown[] = [proxy.logged];
  for (const start of ["/3/api", "/3/download", "GET /api/v1/x", "POST /api/v1/x"]) {
    const answer = await proxy.ask(`${start}?apikey=SECRETKEY&link=LINK`, { "x-api-key": "SECRETKEY" });
    expect(answer.status).toBe(status);
    expect(sentenceIn(answer, start === "/3/api" ? "rss+xml" : "json")).toMatch(sentence);
    if (start === "/3/api") expect(answer.text).not.toMatch(/&(?!amp;|quot;|#x27;|lt;|gt;)/);
    expect(answer.text).toContain("http://127.0.0.1:");
    seen.push(answer.text);
  }
  expect(JSON.stringify(seen)).not.toMatch(/hunter2|user|SECRETKEY|PROXYKEY|LINK|Show|\.ts\b|node:|Error:|at \//);
}

describe.concurrent("a backend", () => {
  test("may take 14 seconds for a search", async () => {
    using proxy = await proxyWith(() => Bun.sleep(14_000).then(frenchFeed));
    expect((await proxy.ask("/3/api")).text).toBe(TAGGED_FEED);
    expect(proxy.requests).toHaveLength(1);
  });

  test("that doesn't answer within BACKEND_TIMEOUT is given up with a 504", async () => {
    const silent = rawBackend("HTTP/1.1 200 OK\r\nConte", "stays");
    using proxy = await proxyWith(silent, { BACKEND_TIMEOUT: "1" }, secretUrlOf);
    const started = performance.now();
    await expectError(proxy, 504, /\b1 s\b.*BACKEND_TIMEOUT/);
    expect(performance.now() - started).toBeGreaterThan(900);
    await until(() => proxy.backend.sockets.every((socket) => socket.destroyed));
  });

  test("that has begun its answer is waited for without end", async () => {
    const reply: Replies = (_, response) => {
      response.writeHead(200, { ...XML, "content-length": FRENCH_FEED.length }).write(FRENCH_FEED.slice(0, 2));
      setTimeout(() => response.end(FRENCH_FEED.slice(2)), 1600);
    };
    using proxy = await proxyWith(reply, { BACKEND_TIMEOUT: "1" });
    const [search, download] = await Promise.all([proxy.ask("/3/api"), proxy.ask("/3/download")]);
    expect([search.text, download.text]).toEqual([TAGGED_FEED, FRENCH_FEED]);
  });

  test("that is away is a 502 that says so, until it comes back; /health is well all the time", async () => {
    const port = await freePort();
    using proxy = proxyTo(secretUrlOf({ port }), { BACKEND_API_KEY: "PROXYKEY" });
    await expectError(proxy, 502, new RegExp(`http://127.0.0.1:${port}/it's&co can't be reached`));
    const headers = { "content-type": expect.stringMatching(/^application\/json/) };
    expect(await proxy.ask("/health")).toMatchObject({ status: 200, text: '{"status":"ok"}', headers });
    using _backend = await backendThat(frenchFeed, port);
    expect(await proxy.ask("/3/api")).toMatchObject({ status: 200, text: TAGGED_FEED });
  });

  test("that speaks http where BACKEND_URL says https is a 502 that says so", async () => {
    using proxy = await proxyWith(ok, {}, (backend) => urlOf(backend).replace("http:", "https:"));
    const answer = await proxy.ask("/api/v1/x");
    const sentence = expect.stringMatching(/^https:.* does not speak https: write http:\/\/ in BACKEND_URL\.$/);
    expect([answer.status, sentenceIn(answer, "json")]).toEqual([502, sentence]);
  });

  test.each(["localhost", "127.0.0.1", "[::1]"])(
    "that is away at %s is said to be the container itself",
    async (host) => {
      using proxy = proxyTo(`http://${host}:${await freePort()}`);
      expect((await proxy.ask("/api/v1/x")).text).toContain("In a container, that address is the container itself.");
    },
  );

  const OK = "HTTP/1.1 200 OK\r\nContent-Type: application/rss+xml\r\n";
  const HALF = `${OK}Content-Length: 99999\r\n\r\n${FRENCH_FEED}`;
  const CHUNKED = `${OK}Transfer-Encoding: chunked\r\n\r\n`;
  const packed = (encoding: string, body: Buffer) =>
    `${OK}Content-Encoding: ${encoding}\r\nContent-Length: ${body.length}\r\n\r\n${body.toString("latin1")}`;
  const NO_LAST_CHUNK = `${CHUNKED}${FRENCH_FEED.length.toString(16)}\r\n${FRENCH_FEED}\r\n`;
  test.each([
    ["a Content-Length that is not reached", HALF],
    ["no last chunk", NO_LAST_CHUNK],
    ["half a chunk", `${CHUNKED}fff\r\n${FRENCH_FEED}`],
    ["a wrong chunk", `${NO_LAST_CHUNK}zz\r\n`],
    ["half a head", OK],
    ["nothing", ""],
    ["half of its gzip", packed("gzip", PACKED.subarray(0, -12))],
    ["a plain text that is called deflate", packed("deflate", Buffer.from(FRENCH_FEED))],
    ["garbage", "garbage\r\n\r\n"],
    ["binary garbage", "\0\x01\x02\x03\r\n\r\n"],
    ["another protocol", "SSH-2.0-OpenSSH_9.6\r\n"],
    ["a status that is no number", "HTTP/1.1 abc OK\r\n\r\n"],
  ])("whose feed is broken by %s is a 502, never half a feed", async (_, bytes) => {
    using proxy = await proxyWith(rawBackend(bytes), { BACKEND_API_KEY: "PROXYKEY" }, secretUrlOf);
    const search = await proxy.ask("/3/api?apikey=SECRETKEY");
    expect([search.status, search.headers["content-encoding"]]).toEqual([502, undefined]);
    expect(sentenceIn(search, "rss+xml")).toMatch(bytes.includes("Content-Encoding") ? /./ : /broke off/);
    expect(JSON.stringify([search, proxy.logged])).not.toMatch(/Show|SECRETKEY|hunter2|at \//);
    if (!bytes.startsWith(OK)) await expectError(proxy, 502, /not HTTP/);
  });

  test.each([
    ["half its Content-Length", HALF, "end"],
    ["a reset", HALF, "resetAndDestroy"],
    ["no last chunk", NO_LAST_CHUNK, "end"],
    ["half a chunk", `${NO_LAST_CHUNK}fff\r\nx`, "end"],
  ] as const)("that breaks off a download with %s breaks the client's, and is one warning", async (_, bytes, end) => {
    using proxy = await proxyWith(rawBackend(bytes, "stays"));
    const download = await proxy.open("/3/download?apikey=SECRETKEY&link=LINK");
    proxy.backend.sockets[0]![end]();
    expect(text(download)).rejects.toThrow();
    await until(() => proxy.logged.warn.length > 0);
    await Bun.sleep(50);
    expect(proxy.logged.warn).toEqual(["GET /3/download: the backend broke off its answer"]);
    expect(JSON.stringify(proxy.logged)).not.toMatch(/SECRETKEY|LINK/);
  });

  test("that closes a connection that was kept open costs no request, with or without a body", async () => {
    const used = new Set<Socket>();
    using proxy = await proxyWith(({ socket }) => {
      if (!used.has(socket)) return used.add(socket) && ok();
      socket.destroy();
    });
    for (let round = 0; round < 3; round++) {
      for (const start of ["/3/api", "DELETE /api/v1/x"]) expect((await proxy.ask(start)).status).toBe(200);
      expect((await proxy.ask("POST /api/v1/x", {}, "body")).status).toBe(200);
      expect((await proxy.ask("PUT /api/v1/x", { "transfer-encoding": "chunked" }, "bo", "dy")).status).toBe(200);
    }
    expect(proxy.requests.length).toBeGreaterThan(12);
    expect(proxy.requests.filter(({ method }) => method === "POST")).toHaveLength(3);
  });

  test("whose chunks are more than its Content-Length says is held by the limit all the same", async () => {
    const chunk = `100000\r\n${" ".repeat(0x100000)}\r\n`;
    const head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n";
    using proxy = await proxyWith(rawBackend(`${head}${chunk.repeat(33)}0\r\n\r\n`, "stays"));
    const search = await proxy.ask("/3/api");
    expect([search.status, sentenceIn(search, "rss+xml")]).toEqual([502, expect.stringContaining("32 MiB")]);
  });

  const HALF_A_POST = "POST /api/v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf";
  test.each([
    ...ROUTES.map((path) => [`waits for ${path}`, get(path)] as const),
    ["still sends its own body", HALF_A_POST],
    ["reads a search", get("/3/api?flowing")],
    ["reads a download", get("/3/download?flowing")],
  ])("is freed when a client leaves that %s, without a warning", async (_, bytes) => {
    const isFlowing = bytes.includes("flowing");
    let steps = 0;
    const server = http.createServer((_, response) => {
      if (!isFlowing) return void (steps = 99);
      response.writeHead(200, XML);
      const timer = setInterval(() => ++steps && response.write("x".repeat(1000)), 20);
      response.on("close", () => clearInterval(timer));
    });
    using proxy = await proxyWith(listening(server));
    using client = await proxy.write(bytes);
    await until(() => steps > 5 && (!bytes.includes("download?flowing") || client.received));
    client.socket.destroy();
    await until(() => proxy.backend.sockets[0]!.destroyed && proxy.logged.info.length > 0);
    if (!isFlowing) expect(proxy.logged.info).toEqual([expect.stringContaining("the client left")]);
    await Bun.sleep(50);
    expect(proxy.logged.warn).toEqual([]);
  });

  const spaces = Buffer.alloc(32 * 1024 * 1024 + 1, " ");
  test.each([
    ["by its Content-Length", { "content-length": spaces.length }, spaces.subarray(0, 100_000), "stays"],
    // An answer that is complete would leave its connection open, and rightly, for the next request.
    ["without a Content-Length", {}, spaces, "stays"],
    ["though it is packed with gzip", { "content-encoding": "gzip" }, zlib.gzipSync(spaces), "ends"],
    [
      "though its packed length is told",
      { "content-encoding": "gzip", "content-length": zlib.gzipSync(spaces).length },
      zlib.gzipSync(spaces),
      "ends",
    ],
  ])("whose feed is larger than 32 MiB is a 502: told %s", async (_, headers: OutgoingHttpHeaders, body, last) => {
    using proxy = await proxyWith((_, response) => {
      response.writeHead(200, { ...XML, ...headers }).write(body);
      if (last === "ends") response.end();
    });
    const search = await proxy.ask("/3/api?apikey=SECRETKEY");
    expect(search.status).toBe(502);
    expect(sentenceIn(search, "rss+xml")).toContain("32 MiB");
    // Its backend isn't left with an answer that nobody reads.
    if (last === "stays") await until(() => proxy.backend.sockets[0]!.destroyed);
  });
});

// ─── What a person sees ─────────────────────────────────────────────────────────────────────────────────────────────

describe.concurrent("a stranger's request", () => {
  test("is served whatever Host it names, and its key stays out of the log", async () => {
    using backend = await backendThat(frenchFeed);
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend) });
    const hosts = words(`nas.1 proxy.2:8080 [fe80::1%eth0]:8080 10.0.0.256 xn--nas nas:99999 a%zz nas:80,nas:80 é`);
    for (const host of hosts) {
      const asked = (path: string) =>
        proxy.exchange(get(path).replace("Host: x", `Host: ${host}\r\nConnection: close`));
      expect(await asked("/3/api?apikey=SECRETKEY")).toContain("S01E01.MULTi.VFF.1080p");
      expect(await asked("/api/v1/../../initialize.json?apikey=SECRETKEY")).toStartWith("HTTP/1.1 404");
    }
    expect(backend.requests.map(({ url }) => url)).toEqual(hosts.map(() => "/3/api?apikey=SECRETKEY"));
    expect([proxy.stdout(), proxy.stderr()]).toEqual([expect.not.stringContaining("SECRETKEY"), ""]);
  });

  test("a fault in the proxy itself is one sentence, which says nothing of the request", async () => {
    const fault = () => {
      throw new Error("SECRETKEY");
    };
    const log = { debug: fault, info: fault, warn: fault };
    using server = serve({ ...readConfig({ BACKEND_URL: "http://127.0.0.1:1" }), port: 0, log });
    const answer = await clientOf(server.port!).ask("/3/api?apikey=SECRETKEY");
    expect([answer.status, sentenceIn(answer, "json")]).toEqual([500, expect.not.stringContaining("SECRETKEY")]);
  });

  test("is a 508 at once where BACKEND_URL is the proxy itself, and says so", async () => {
    const { port, ask } = clientOf(await freePort());
    using _proxy = run([], { BACKEND_URL: urlOf({ port }), BACKEND_API_KEY: "PROXYKEY", PORT: String(port) });
    await until(async () => !(await clientOf(port).refuses()));
    for (const path of ROUTES) {
      const answer = await ask(path);
      const sentence = sentenceIn(answer, path === "/3/api" ? "rss+xml" : "json");
      expect([answer.status, sentence]).toEqual([508, "BACKEND_URL is the proxy's own address: set it to Prowlarr's."]);
    }
  });

  test("that comes from another proxy like this one is served, and a title is tagged once", async () => {
    using backend = await backendThat(frenchFeed);
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend) });
    using other = proxyTo(urlOf(proxy));
    expect((await other.ask("/3/api")).text).toBe(TAGGED_FEED);
  });
});

describe.concurrent("the log", () => {
  const RESULT = "→ 200, 2 items, 1 tagged, 0 ms";
  test.each([
    ["/3/api?t=tvsearch&q=les+revenants&season=1", `GET /3/api tvsearch "les revenants" S01 ${RESULT}`],
    ["/3/api?t=tvsearch&tvdbid=81189&season=1&ep=2", `GET /3/api tvsearch tvdbid=81189 S01E02 ${RESULT}`],
    ["/3/api?t=movie&imdbid=tt0111161&extended=1", `GET /3/api movie imdbid=tt0111161 ${RESULT}`],
    ["/3/api?t=tvsearch&limit=100", `GET /3/api tvsearch latest ${RESULT}`],
    ...["apikey", "api_key", "api-key", "ApiKey", "passkey", "token"].map((name): [string, string] => [
      `/3/api?t=search&q=a%26${name}=SECRETKEY`,
      `GET /3/api search "a&" ${RESULT}`,
    ]),
    ...[
      "%2561pikey%3DSECRETKEY",
      "r%3DSECRETKEY",
      "https://bob:SECRETKEY@host/x",
      "0123456789abcdefSECRETKEY0123456789abcdef",
    ].map((secret): [string, unknown] => [
      `/3/api?t=search&q=a%20${secret.replace("0123456789abcdefSECRETKEY", "0123456789abcdef")}`,
      expect.stringMatching(/^GET \/3\/api search "a (?:r|https)?" →/),
    ]),
    ["/3/api?t=search&q=a%26X-Api-Key:SECRETKEY", `GET /3/api search "a&" ${RESULT}`],
    ["/3/api?t=caps", expect.stringMatching(/^GET \/3\/api caps → 200, .*ms$/)],
    ["/3/download?file=FILE", "GET /3/download → 301, 0 ms"],
    ["POST /api/v1/command?x=1", "POST /api/v1/command → 200, 0 ms"],
    ["/initialize.json?x=1", expect.stringMatching(/^GET \/… → 404: No such route.*, 0 ms$/)],
    ["/1/api&apikey=SECRETKEY?x=1", expect.stringMatching(/^GET \/1\/… → 404: /)],
    ["/3/api%3Fapikey=SECRETKEY?x=1", expect.stringMatching(/^GET \/3\/… → 404: /)],
    ["//SECRETKEY@host/1/api?x=1", expect.stringMatching(/^GET \/.* → 404: /)],
  ])("has one line for %s", async (start, line) => {
    using proxy = await proxyWith(({ url }) => {
      if (url.includes("download")) return { status: 301, headers: { location: "http://indexer.test?k=PASSKEY" } };
      return url.includes("caps") ? { headers: XML, body: "<caps/>" } : frenchFeed();
    });
    await proxy.ask(`${start}&cat=5000,5030&apikey=SECRETKEY&link=LINK`, { "x-api-key": "SECRETKEY" });
    await proxy.ask("/health");
    const lines = proxy.logged.info.map((logged) => logged.replace(/\d+ ms$/, "0 ms"));
    expect(JSON.stringify(proxy.logged)).not.toMatch(/SECRETKEY|LINK|PASSKEY|FILE/);
    expect({ ...proxy.logged, info: lines }).toMatchObject({ info: [line], warn: [] });
  });

  test("can't be forged by a client or a title, has short lines, and never a key, a link or a password", async () => {
    const title = "Show.S01E01.1080p.WEB-GRP\nGET /3/api → 200&#10;&#13;&#27;[2J&#155;2J&#x2028;&#x202E;&#x2066;";
    using backend = await backendThat(({ url, socket }, response) => {
      if (url.startsWith("/api/v1/")) return { status: 401 };
      if (url.includes("broken")) return void socket.destroy();
      if (url.startsWith("/3/api")) return { headers: XML, body: searchResponse(item(title, "French")) };
      response.writeHead(200, { ...NZB, "content-length": 9_999_999 }).write("x".repeat(100_000));
    });
    const BACKEND_URL = urlOf(backend).replace("//", "//user:hunter2@");
    using proxy = await runningProxy({ BACKEND_URL, BACKEND_API_KEY: "PROXYKEY", LOG_LEVEL: "debug" });
    const lines = () => proxy.stdout().split("\n").slice(0, -1);
    await until(() => lines().length === 1);
    const evil = encodeURIComponent('x"\r\nGET /3/api → 200\t\x1b[2J\x07\x00\x7f\x9b2J\u2028\u202e\u2069');
    const long = "x".repeat(7000);
    const starts = ["language-tag-proxy"];
    for (const [target, ...logged] of [
      [`/3/api?t=${evil}&q=${evil}&season=${evil}&tvdbid=${evil}`, "GET /3/api ", "  Show."],
      [`/3/api?t=${long}&q=${long}`, "GET /3/api ", "  Show."],
      ["/3/api?t=broken", "GET /3/api "],
      [`/api/v1/${evil}?x=1`, "GET /api/v1/"],
      [`/api/v1/${long}?x=1`, "GET /api/v1/"],
      [`/${evil}?x=1`, "GET /"],
    ] as const) {
      await proxy.ask(`${target}&apikey=SECRETKEY&link=LINK`, { "x-api-key": "SECRETKEY" });
      starts.push(...logged);
    }
    await proxy.exchange("GET //[/3/api?apikey=SECRETKEY HTTP/1.0\r\n\r\n");
    const download = `/3/download?apikey=SECRETKEY&link=LINK&file=FILE&q=${long}`;
    (await proxy.open(download)).destroy();
    const broken = await proxy.open(download);
    for (const socket of backend.sockets) socket.resetAndDestroy();
    expect(text(broken)).rejects.toThrow();
    await until(() => proxy.stdout().includes("the backend broke off"));
    proxy.child.kill("SIGTERM");
    expect((await proxy.ended()).stderr).toBe("");
    expect(starts.filter((start, n) => !lines()[n]!.startsWith(start))).toEqual([]);
    expect(lines().filter((line) => /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/u.test(line) || line.length > 500)).toEqual(
      [],
    );
    expect(proxy.stdout()).not.toMatch(/SECRETKEY|PROXYKEY|LINK|FILE|hunter2|user|passkey|^\s+at |\.ts:/m);
  });

  test("at debug level has each French title before → after and why, or why it stays", async () => {
    const [multi, stays] = ["Show.S01E03.MULTi.1080p.WEB-GRP", "Tom &amp; Jerry 2021 FRENCH 1080p WEB-GRP"];
    const body = FRENCH_FEED.replace("</channel>", item(multi!, "VFF") + item(stays!, "fr"));
    using proxy = await proxyWith(() => ({ headers: XML, body }));
    await proxy.ask("/3/api");
    expect(proxy.logged.info[0]).toContain("200, 4 items, 2 tagged");
    expect(proxy.logged.debug.map((line) => line.replace(/\([^)]*"1080p".*\)$/, "(WHY)"))).toEqual([
      "  Show.S01E01.1080p.WEB-GRP → Show.S01E01.MULTi.VFF.1080p.WEB-GRP (WHY)",
      expect.stringContaining("  Show.S01E03.MULTi.1080p.WEB-GRP → Show.S01E03.MULTi.VFF.1080p.WEB-GRP ("),
      '  Tom & Jerry 2021 FRENCH 1080p WEB-GRP stays: already French: "FRENCH"',
    ]);
  });

  test("at level warn has the proxy's own 502, 504 and 508 and broken downloads, and nothing else", async () => {
    using backend = await backendThat(({ url }, response) => {
      if (url === "/3/api") return frenchFeed();
      if (url === "/3/download") response.writeHead(200, { ...NZB, "content-length": 99 }).write("half");
    });
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend), BACKEND_TIMEOUT: "1", LOG_LEVEL: "warn" });
    await proxy.ask("/3/api");
    const { via = "" } = backend.requests[0]!.headers;
    await proxy.ask("/nowhere");
    expect((await proxy.ask("/api/v1/slow")).status).toBe(504);
    expect((await proxy.ask("/api/v1/loop", { via })).status).toBe(508);
    const download = await proxy.open("/3/download");
    backend[Symbol.dispose]();
    expect(text(download)).rejects.toThrow();
    await until(() => proxy.stdout().includes("broke off"));
    expect((await proxy.ask("/3/api")).status).toBe(502);
    proxy.child.kill("SIGTERM");
    expect((await proxy.ended()).stdout.trimEnd().split("\n")).toEqual([
      expect.stringMatching(/^GET \/api\/v1\/slow → 504: .*BACKEND_TIMEOUT/),
      expect.stringMatching(/^GET \/api\/v1\/loop → 508: .*BACKEND_URL/),
      "GET /3/download: the backend broke off its answer",
      expect.stringMatching(/^GET \/3\/api.* → 502: .*can't be reached/),
    ]);
  });
});

describe.concurrent("the program", () => {
  test.each(["SIGTERM", "SIGINT"] as const)("lets what is in flight finish on %s, then ends with 0", async (signal) => {
    const large = searchResponse(item("Show.S01E01.1080p.WEB-GRP", "French").repeat(20_000));
    const { promise: stopping, resolve: isStopping } = Promise.withResolvers<void>();
    using backend = await backendThat(async ({ url }, response) => {
      response.writeHead(200, url === "/3/api" ? XML : NZB);
      if (url === "/3/download") response.write(large);
      await stopping;
      response.end(url === "/3/download" ? "after" : large);
    });
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend) });
    using idle = await proxy.write(get("/health"));
    using _half = await proxy.write("GET /3/api HTTP/1.1\r\nHos");
    await until(() => idle.received.includes("ok"));
    const search = proxy.open("/3/api");
    const download = await proxy.open("/3/download");
    await until(() => backend.requests.length === 2);
    proxy.child.kill(signal);
    await until(() => proxy.refuses());
    isStopping();
    // A slow client reads its answer to the end.
    await Bun.sleep(400);
    expect((await text(await search)).match(/MULTi\.VFF/g)).toHaveLength(20_000);
    expect(await text(download)).toBe(`${large}after`);
    expect(await proxy.ended()).toMatchObject({ code: 0, stderr: "" });
  });

  test("sends a search answer to its end after SIGTERM, however slowly its client reads", async () => {
    const large = searchResponse(item("Show.S01E01.1080p.WEB-GRP", "French"), "<!-- x -->".repeat(1_600_000));
    using backend = await backendThat(() => ({ headers: XML, body: large }));
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend) });
    const search = await proxy.open("/3/api");
    await until(() => proxy.stdout().includes("1 tagged"));
    proxy.child.kill("SIGTERM");
    await until(() => proxy.refuses());
    // The process has nothing else to do, and waits.
    await Bun.sleep(1500);
    expect(proxy.child.exitCode).toBe(null);
    expect(await text(search)).toBe(large.replace("1080p", "MULTi.VFF.1080p"));
    expect(await proxy.ended()).toMatchObject({ code: 0, stderr: "" });
  });

  test.each(["SIGTERM SIGTERM", "SIGINT SIGINT", "SIGTERM SIGINT"])("ends at once on %s", async (signals) => {
    const [first, second] = signals.split(" ") as NodeJS.Signals[];
    using backend = await backendThat(() => {});
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend) });
    using _client = await proxy.write(get("/3/api"));
    await until(() => backend.requests.length === 1);
    proxy.child.kill(first);
    await until(() => proxy.refuses());
    await Bun.sleep(100);
    expect([proxy.child.exitCode, proxy.child.signalCode]).toEqual([null, null]);
    proxy.child.kill(second);
    // It ends by itself: as process 1, a container's, no signal would end it.
    expect([(await proxy.ended()).code > 0, proxy.child.signalCode]).toEqual([true, null]);
  });

  const BACKEND_URL = "http://127.0.0.1:9696";
  const WRONG: Record<string, [expected: string, ...values: (string | undefined)[]]> = {
    BACKEND_URL: [
      "http://prowlarr:9696",
      undefined,
      " ",
      "prowlarr",
      "nas:9696",
      "ftp://u:hunter2@nas",
      "http://nas?k=hunter2",
    ],
    BACKEND_API_KEY: ["without spaces or quotation marks", "hunter2\u00e9", "hunter2 x"],
    SONARR_API_KEY: ["without spaces or quotation marks", "hunter2\u00e9", "hunter2 x", '"hunter2"'],
    RADARR_API_KEY: ["without spaces or quotation marks", "hunter2,hunter2 x"],
    PORT: ["1 to 65535", "0", "65536", "abc"],
    BACKEND_TIMEOUT: ["seconds", "0", "-1", "abc"],
    LOG_LEVEL: ["debug, info or warn", "loud", "a\nb"],
  };
  const rows = Object.entries(WRONG).flatMap(([name, [expected, ...values]]) =>
    values.map((value) => [name, value, expected] as const),
  );
  test.each(rows)("tells in one line what is wrong with %s=%j, and what is expected", async (name, value, expected) => {
    using proxy = run([], { BACKEND_URL, PORT: String(await freePort()), [name]: value });
    const { code, stdout, stderr } = await proxy.ended();
    expect([code, stdout]).toEqual([1, ""]);
    expect(stderr).toMatch(new RegExp(`^${name} (?:must|is not set).*${expected}.*\\n$`));
    if (!/URL|KEY/.test(name)) expect(stderr).toContain(JSON.stringify(value));
    expect(stderr).not.toContain("hunter2");
  });

  test.each([
    ["", "is not set"],
    ["nas:9696", "must begin with http://"],
    ['"http://nas:9696"', "without quotation marks"],
    ["http://nas:9696/?apikey=hunter2", "must end before the ?"],
  ])("tells apart what is wrong with BACKEND_URL=%s: it %s", (BACKEND_URL, what) =>
    expect(() => readConfig({ BACKEND_URL })).toThrow(what),
  );

  test("tells in one line that its port is taken", async () => {
    using other = proxyTo(BACKEND_URL);
    using proxy = run([], { BACKEND_URL, PORT: String(other.port) });
    const stderr = expect.stringMatching(new RegExp(`^Port ${other.port} is taken: .*PORT.*\\n$`));
    expect(await proxy.ended()).toEqual({ code: 1, stdout: "", stderr });
  });

  test("takes an empty variable for one that is not set", () => {
    const empty = { BACKEND_API_KEY: "", PORT: "", BACKEND_TIMEOUT: "", LOG_LEVEL: "" };
    const [unset, config] = [readConfig({ BACKEND_URL }), readConfig({ BACKEND_URL, ...empty })];
    expect({ ...config, log: "" }).toEqual({ ...unset, log: "" });
    expect(config).toMatchObject({ port: 8080, timeout: 120_000, apiKey: "" });
  });

  test("tells at its start its version, its port and its backend, and asks nobody anything", async () => {
    using backend = await backendThat(ok);
    const BACKEND_URL = `http://user:hunter2@127.0.0.1:${backend.port}/prowlarr/`;
    using proxy = await runningProxy({ BACKEND_URL, BACKEND_API_KEY: "PROXYKEY" });
    await Bun.sleep(300);
    const line = `language-tag-proxy ${version} listens on port ${proxy.port}; backend: ${urlOf(backend)}/prowlarr\n`;
    expect([proxy.stdout(), proxy.stderr(), backend.requests]).toEqual([line, "", []]);
  });

  const TITLES = ["Show.S01E01.1080p.WEB-GRP", "L'été.2019.FRENCH.1080p.BluRay-GRP"];
  const TAGGED = /^Show\.S01E01\.MULTi\.VFF\.1080p\.WEB-GRP\n .*"1080p".*\n/;
  const STAYS = /\nL'été\.2019\.FRENCH\.1080p\.BluRay-GRP\n .*already French.*\n$/;
  const NAMES = words(
    "--check --demo --title --health --version BACKEND_URL BACKEND_API_KEY SONARR_API_KEY RADARR_API_KEY PORT BACKEND_TIMEOUT LOG_LEVEL",
  );
  test.each([
    ["--help", "names every option and every variable", "", NAMES.map((name) => new RegExp(name))],
    ["-h", "is the same", "", NAMES.map((name) => new RegExp(name))],
    ["--version", "prints the version of package.json", "", [new RegExp(`^${version}\n$`)]],
    [`--title ${TITLES.join(" ")}`, "prints what each title becomes, and why", "", [TAGGED, STAYS]],
    ["--title -", "reads titles from stdin, one a line", `${TITLES.join("\r\n\n")}\n`, [TAGGED, STAYS]],
    ["--title", "is one line and a failure without a title", "", undefined],
    ["--title -", "is one line and a failure with nothing to read", "", undefined],
    ["--title ", "is one line and a failure with an empty title", "", undefined],
    ["--hepl", "is one line and a failure", "", undefined],
    ["serve", "is one line and a failure", "", undefined],
  ])("%s %s", async (args, _, input, expected) => {
    using proxy = run(args.split(" "), { BACKEND_URL: "http://127.0.0.1:9696" }, input);
    const { code, stdout, stderr } = await proxy.ended();
    if (!expected) expect([code, stdout, stderr]).toEqual([1, "", expect.stringMatching(/^.+\n$/)]);
    else expect([code, stderr]).toEqual([0, ""]);
    for (const part of expected ?? []) expect(stdout).toMatch(part);
  });

  test("--health exits with 0 where a proxy runs, its backend or not, and with 1 where none does", async () => {
    using server = proxyTo(`http://127.0.0.1:${await freePort()}`);
    using other = await backendThat(() => ({ status: 503 }));
    const ports = { [server.port]: 0, [await freePort()]: 1, [other.port]: 1, abc: 1 };
    for (const [port, code] of Object.entries(ports)) {
      using proxy = run(["--health"], { PORT: port });
      const stderr = expect.stringMatching(port === "abc" ? /^PORT must be .+\n$/ : /^$/);
      expect(await proxy.ended()).toMatchObject({ code, stderr });
    }
  });

  test("--demo serves a sample: the first two titles get their tag, and it tells how to try it", async () => {
    using proxy = await runningProxy({}, "--demo");
    await until(() => proxy.stdout().includes("curl "));
    const [, target] = new RegExp(`curl "http://localhost:${proxy.port}([^"]+)"`).exec(proxy.stdout())!;
    const titles = (await proxy.ask(target!)).text.match(/<title>.*<\/title>/g)!;
    expect(titles.map((title) => title.includes("MULTi.VFF"))).toEqual([true, true, false, false]);
    proxy.child.kill("SIGINT");
    expect(await proxy.ended()).toMatchObject({ code: 0, stderr: "" });
  });

  test("--title prints no control characters", async () => {
    using proxy = run(["--title", "Show.S01E01.1080p\x1b[2J\u202e-GRP"]);
    expect((await proxy.ended()).stdout).toStartWith("Show.S01E01.MULTi.VFF.1080p\uFFFD[2J\uFFFD-GRP\n");
  });

  test("trims a title as a feed's titles are", async () => {
    using proxy = run(["--title", " Le.Film-GRP "]);
    expect((await proxy.ended()).stdout).toStartWith("Le.Film.MULTi.VFF-GRP\n");
  });

  test.each(["http://nas:9696 # Prowlarr", "http://nas # Prowlarr", "http://nas:9696\t#x"])(
    "says that %j, from a compose file, has a comment",
    (BACKEND_URL) => expect(() => readConfig({ BACKEND_URL })).toThrow("an address alone, without a comment or spaces"),
  );

  test.each(["http://nas:9696/3/", "http://nas:9696/3", "http://nas:9696/prowlarr/12/api"])(
    "says that %s ends in an indexer's number",
    (BACKEND_URL) =>
      expect(() => readConfig({ BACKEND_URL })).toThrow("indexer's number: set it to Prowlarr's own address"),
  );

  test.each([
    ["user:100%25", "user:100%"],
    [":pw", ":pw"],
    ["user", "user:"],
    ["us%C3%A9r:%40%3A", "usér:@:"],
  ])("sends the credentials %s", (credentials, sent) => {
    const { backend, authorization } = readConfig({ BACKEND_URL: `http://${credentials}@nas:9696/` });
    expect([backend, authorization]).toEqual(["http://nas:9696", `Basic ${Buffer.from(sent).toString("base64")}`]);
  });

  test.each(["user:100%", "us%er:", "u:%C3"])("refuses the credentials %s, which no URL can hold", (credentials) =>
    expect(() => readConfig({ BACKEND_URL: `http://${credentials}@nas` })).toThrow("BACKEND_URL has a %"),
  );

  // Made for this test alone, for localhost, until 2126.
  const KEY = `-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgN9GcAbtyGwTyRsPTQtATiqKd8EJERPGctIYrVbq6r0qhRANCAARz44sy+cKvy+Gh
f0LxzQX+2kY2q8MPziGgAC+itC057VJbbAFcT3eW+bpbaWARUXmQ8lyIksSa9kqWLnaj/eNS
-----END PRIVATE KEY-----`;
  const CERTIFICATE = `-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUWIfxpqzWxu1WWYQmGDuAqLaVoQYwCgYIKoZIzj0EAwIwFDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTIwMTE0
MloYDzIxMjYxMDI4MjAxMTQyWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARz44sy+cKvy+Ghf0LxzQX+
2kY2q8MPziGgAC+itC057VJbbAFcT3eW+bpbaWARUXmQ8lyIksSa9kqWLnaj/eNSo2kwZzAdBgNVHQ4EFgQUAGRgxko8gRo/qQWFBIEMapkv+3Qw
HwYDVR0jBBgwFoAUAGRgxko8gRo/qQWFBIEMapkv+3QwDwYDVR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIhAJ5danMdfkQ0O4jnoAn2t3kj1138UAItm1sLCeRQwCCLAiAcHRyQbDqdORWds957SXclsfvpHwiGh09ssYfGkCJ6GA==
-----END CERTIFICATE-----`;

  test("says that a certificate is not trusted, and trusts it where NODE_EXTRA_CA_CERTS names it", async () => {
    using backend = Bun.serve({ port: 0, tls: { key: KEY, cert: CERTIFICATE }, fetch: () => new Response("fine") });
    const BACKEND_URL = `https://localhost:${backend.port}`;
    using strict = await runningProxy({ BACKEND_URL });
    const refused = await strict.ask("/3/download");
    expect([refused.status, sentenceIn(refused, "json")]).toEqual([
      502,
      expect.stringMatching(/certificate .* NODE_EXTRA_CA_CERTS/),
    ]);
    const file = `${mkdtempSync(`${tmpdir()}/`)}/ca.pem`;
    await Bun.write(file, CERTIFICATE);
    using trusting = await runningProxy({ BACKEND_URL, NODE_EXTRA_CA_CERTS: file });
    expect(await trusting.ask("/3/download")).toMatchObject({ status: 200, text: "fine" });
  });

  const onLinux = test.skipIf(process.platform !== "linux");
  /** The most memory that a process has had, in MiB. */
  const peakOf = ({ pid }: { pid?: number }) =>
    Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))![1]) / 1024;

  onLinux("stays below 100 MiB for a download of 300 MB to a slow client", async () => {
    const piece = Buffer.alloc(1_000_000, "x");
    using backend = await backendThat(async (_, response) => {
      response.writeHead(200, { ...NZB, "content-length": 300 * piece.length });
      for (let n = 0; n < 300; n++) if (!response.write(piece)) await once(response, "drain");
      response.end();
    });
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend) });
    let received = 0;
    for await (const { length } of await proxy.open("/3/download")) {
      received += length;
      if (received < 20_000_000) await Bun.sleep(5);
    }
    expect(received).toBe(300_000_000);
    expect(peakOf(proxy.child)).toBeLessThan(100);
  });

  // The README's unit gives the service 512 MiB.
  onLinux("stays below 450 MiB for a feed of 32 MiB, whatever it is made of", async () => {
    const french = `<item><title>F.2019</title>${languageTag("fr")}</item>`;
    const unusual = "<attr name='language' value='X'/>";
    for (const part of ["<?x?>", "<!---->", "<![CDATA[]]>", "<!DOCTYPE[]>", "<", french, unusual]) {
      const body = `<rss><item>${part.repeat((32 * 1024 * 1024 - 100) / part.length)}</item>`;
      using backend = await backendThat(() => ({ headers: XML, body }));
      using proxy = await runningProxy({ BACKEND_URL: urlOf(backend) });
      for (let search = 0; search < 3; search++)
        expect((await proxy.ask("/1/api")).bytes.length).toBeGreaterThanOrEqual(body.length);
      expect(peakOf(proxy.child)).toBeLessThan(450);
    }
  });

  // Below the limit of 32 MiB, but far from what any search finds.
  test("passes on a feed of 75,000 costly titles without tags, with one warning, and answers others meanwhile", async () => {
    const body = `<rss>${item("vf😀".repeat(60), "French").repeat(75_000)}</rss>`;
    using backend = await backendThat(() => ({ headers: XML, body }));
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend), LOG_LEVEL: "warn" });
    const started = performance.now();
    expect((await proxy.ask("/3/api")).bytes.equals(Buffer.from(body))).toBe(true);
    expect((await proxy.ask("/health")).status).toBe(200);
    expect(performance.now() - started).toBeLessThan(10_000);
    expect(proxy.stdout()).toMatch(/^A feed has more than 20000 items.*\n$/);
  });

  onLinux("stays below 130 MiB for 600 searches of 250 kB, each with its own title and language", async () => {
    const others = item("Film.2019.1080p.WEB-GRP").repeat(4500);
    using backend = await backendThat(({ url }) => {
      const own = item(`Film.${url.length}.2019.1080p.WEB-GRP`, `French ${url.length}`);
      return { headers: XML, body: searchResponse(own, others) };
    });
    using proxy = await runningProxy({ BACKEND_URL: urlOf(backend) });
    for (let search = 0; search < 600; search++) {
      expect((await proxy.ask(`/1/api?q=${"x".repeat(search)}`)).text).toContain(".2019.MULTi.VFF.1080p");
    }
    expect(peakOf(proxy.child)).toBeLessThan(130);
  });
});

describe("--check judges", () => {
  const PROXY = { address: "http://nas:9797", who: "proxy" } as const;
  const PROWLARR = { address: "http://prowlarr:9696", who: "other" } as const;
  const SILENT = { address: "http://nas:7777", who: "nobody" } as const;
  const AWAY = { address: "http://proxy:8080", who: "unknown" } as const;
  const LOCAL = { address: "http://localhost:9797", who: "proxy" } as const;
  const NONE = { address: "", who: "other" } as const;

  const HD: Profile = {
    name: "HD",
    isUsed: true,
    upgradeAllowed: true,
    cutoff: 10_000,
    minimum: 0,
    increment: 1801,
    language: "",
    scores: [{ tagged: 1800, untagged: 0, file: 0 }],
  };
  const NOTHING: Profile = { ...HD, name: "SD", scores: [{ tagged: 0, untagged: 0, file: 0 }] };
  type Server = Client["server"];
  /** What a client says whose indexers are at these addresses, and which fail in its test for these reasons. */
  const api = (
    servers: Server[] = [PROXY, PROXY],
    reasons: string[] = [],
    more: Partial<ClientApi> = {},
  ): ClientApi => ({
    version: "4.0.16",
    profiles: [HD],
    indexers: servers.map((server, id) => ({ id, name: `NZB ${id}`, server, prowlarrId: 3 })),
    tests: new Map(servers.map((_, id) => [id, reasons[id] ?? ""])),
    ...more,
  });
  const sonarr = (more: Partial<Client> = {}): Client => ({
    name: "Sonarr",
    kind: "Sonarr",
    address: "http://nas:8989",
    server: PROXY,
    isFullSync: true,
    api: api(),
    ...more,
  });
  const indexer = (id: number, name: string, latest: Indexer["latest"]): Indexer => ({ id, name, latest });
  const NZB = indexer(3, "NZB", { items: 100, reported: 92, french: 14, tagged: 9 });
  const world = (clients: Client[], indexers: Indexer[], more: Partial<World> = {}): World => ({
    port: 9797,
    backend: "http://nas:9696",
    own: "proxy",
    reachesProwlarr: true,
    prowlarr: { version: "2.3.6", clients, indexers },
    ...more,
  });

  const WELL = [...judge(world([sonarr()], [NZB]))];
  /** The lines that are not there where all is well. */
  const newLines = (clients: Client[], more?: Partial<World>) =>
    [...judge(world(clients, [NZB], more))].filter((line) => !WELL.includes(line));

  test("an installation where all is well", () =>
    expect(WELL).toEqual([
      "✓ The proxy answers on port 9797.",
      "✓ Prowlarr 2.3.6 at http://nas:9696 accepts BACKEND_API_KEY.",
      '✓ Sonarr, profile "HD": the tag brings 1800 points, and no release is downloaded twice for them.',
      "✓ Sonarr 4.0.16 asks the proxy for all of its 2 indexers, and gets answers.",
      "The latest releases of each indexer:",
      "  3  NZB  100 releases, 92 report a language, 14 French, 9 to be tagged",
      "✓ 1 of 1 report languages.",
    ]));

  test("what to do in the order in which to do it: all profiles, because a sync connects every client, then the rest", () => {
    const profiles = [{ ...HD, increment: 1 }];
    const lines = newLines([
      sonarr({ server: PROWLARR, api: api([PROWLARR], [], { profiles }) }),
      sonarr({ name: "Radarr", kind: "Radarr", api: api([PROWLARR], [], { profiles }) }),
    ]);
    expect(lines).toEqual([
      expect.stringMatching(/^✗ Sonarr, profile "HD": .* to 1801/),
      expect.stringMatching(/^✗ Radarr, profile "HD": .* to 1801/),
      expect.stringMatching(/^✗ Prowlarr gives Sonarr the address/),
      expect.stringMatching(/^✗ Radarr asks http:\/\/prowlarr:9696/),
    ]);
  });

  test.each<[what: string, more: Partial<World>, ...expected: string[]]>([
    [
      "no proxy",
      { own: "nobody" },
      "✗ No proxy answers on port 9797: start it (if it ends at once, its log says why), or set PORT to its port.",
    ],
    [
      "no answer from it",
      { own: "unknown" },
      "✗ No proxy answers on port 9797: start it (if it ends at once, its log says why), or set PORT to its port.",
    ],
    [
      "something else in its place",
      { own: "other" },
      '✗ Something else answers on port 9797, not the proxy: set PORT to the proxy\'s port, or find that program with "sudo ss -ltnp" and stop it.',
    ],
    [
      "settings that it did not have at its start",
      { reachesProwlarr: false },
      "✗ The proxy on port 9797 does not reach Prowlarr, but this check does: its BACKEND_URL is another one, or it needs a restart after a change.",
    ],
    ["no Prowlarr", { reachesProwlarr: false, prowlarr: new Problem("It is away.") }, "✗ It is away."],
    [
      "no application",
      { prowlarr: { version: "2.3.6", clients: [], indexers: [NZB] } },
      "✗ Prowlarr has no Sonarr or Radarr: add them under Settings → Apps, with Prowlarr's own address for now.",
    ],
    [
      "no indexer in Prowlarr, before anything to do with a client",
      { prowlarr: { version: "2.3.6", clients: [sonarr({ api: "no key" })], indexers: [] } },
      "✗ Prowlarr has no enabled indexer: add or enable one that reports languages.",
      "✗ Sonarr: the check can't see whom it asks, nor what the tag brings there: copy its key from Sonarr → Settings → General into SONARR_API_KEY.",
    ],
  ])("the proxy and Prowlarr: %s", (_, more, ...expected) => expect(newLines([sonarr()], more)).toEqual(expected));

  const SET = "(Prowlarr → Settings → Apps → Sonarr), then press Sync App Indexers.";
  const SERVER = `set "Prowlarr Server" to the proxy's address, and "Sync Level" to Full Sync ${SET}`;
  const SYNC = `set "Sync Level" to Full Sync ${SET}`;
  const PRESS = "press Sync App Indexers in Prowlarr (Settings → Apps).";
  const SEE = "If that changes nothing, see their categories, tags and Sync Profile there.";
  const DELETE = "If that changes nothing, delete what it asks there under its Settings → Indexers, and sync again.";
  const gives = (address: string) => `✗ Prowlarr gives Sonarr the address ${address}`;
  const KEY = "copy its key from Sonarr → Settings → General into SONARR_API_KEY.";
  const NO_KEY = `✗ Sonarr: the check can't see whom it asks, nor what the tag brings there: ${KEY}`;
  const hundred = Array.from({ length: 100 }, () => PROWLARR);

  test.each<[what: string, one: Partial<Client>, ...expected: string[]]>([
    ["no key", { api: "no key" }, NO_KEY],
    [
      "a refused key",
      { api: "key refused" },
      `✗ Sonarr: http://nas:8989 refuses SONARR_API_KEY: if that is its address (Prowlarr → Settings → Apps), ${KEY}`,
    ],
    [
      "another program at its address",
      { api: "wrong address" },
      '✗ Sonarr: http://nas:8989 is not a Sonarr: set "Sonarr Server" to its address, with its URL base (Prowlarr → Settings → Apps → Sonarr).',
    ],
    [
      "no address of its own",
      { api: "wrong address", address: "" },
      '✗ Sonarr: Prowlarr has no address for it: set "Sonarr Server" to its address, with its URL base (Prowlarr → Settings → Apps → Sonarr).',
    ],
    ["a fault", { api: new Problem("it is starting.") }, "? Sonarr: it is starting."],
    [
      "no key, and Prowlarr's own address",
      { api: "no key", server: PROWLARR },
      NO_KEY,
      `${gives(PROWLARR.address)}, which is not the proxy's: ${SERVER} But not before this check has seen its profiles.`,
    ],
    [
      "no address in Prowlarr",
      { server: NONE },
      `✗ Prowlarr gives Sonarr no address that begins with http://: ${SERVER}`,
    ],
    [
      "Prowlarr's own address, not yet synced",
      { server: PROWLARR },
      `${gives(PROWLARR.address)}, which is not the proxy's: ${SERVER}`,
    ],
    [
      "an address that nobody has",
      { server: SILENT, api: api([SILENT]) },
      `${gives(SILENT.address)}, where nothing answers: if it is the proxy's, start that; if not, ${SERVER}`,
    ],
    [
      "Prowlarr's own address, and no Full Sync",
      { server: PROWLARR, isFullSync: false, api: api([PROWLARR]) },
      `${gives(PROWLARR.address)}, which is not the proxy's: ${SERVER}`,
    ],
    ["an address set by hand, and no Full Sync to overwrite it", { server: PROWLARR, isFullSync: false }],
    ["no indexer", { api: api([]) }, `✗ Sonarr has no indexer of Prowlarr's that is switched on: ${PRESS} ${SEE}`],
    [
      "no indexer without Full Sync",
      { api: api([]), isFullSync: false },
      `✗ Sonarr has no indexer of Prowlarr's that is switched on: ${SYNC} ${SEE}`,
    ],
    [
      "an indexer that still asks Prowlarr",
      { api: api([PROXY, PROWLARR]) },
      `✗ Sonarr asks http://prowlarr:9696, which is not the proxy's, for NZB 1: ${PRESS} ${DELETE}`,
    ],
    [
      "the same without Full Sync",
      { api: api([PROXY, PROWLARR]), isFullSync: false },
      `✗ Sonarr asks http://prowlarr:9696, which is not the proxy's, for NZB 1: ${SYNC} ${DELETE}`,
    ],
    [
      "a hundred of them, in one line",
      { api: api(hundred) },
      `✗ Sonarr asks http://prowlarr:9696, which is not the proxy's, for 100 indexers (the first is NZB 0): ${PRESS} ${DELETE}`,
    ],
    [
      "an address that only the client can reach, and gets answers from",
      { server: AWAY, api: api([AWAY, PROXY]) },
      "? Sonarr 4.0.16 gets answers for all of its 2 indexers, but whether http://proxy:8080 is the proxy can't be seen from here.",
    ],
    [
      "such an address that Prowlarr does not give",
      { api: api([AWAY]) },
      `✗ Sonarr asks http://proxy:8080, which is not the proxy's, for NZB 0: ${PRESS} ${DELETE}`,
    ],
    [
      "none of the indexers that report languages",
      {
        api: api([], [], {
          ...api([PROXY, PROXY]),
          indexers: api([PROXY, PROXY]).indexers.map((one) => ({ ...one, prowlarrId: 5 })),
        }),
      },
      "✗ Sonarr has no indexer that reports languages, such as NZB: see its categories, tags and Sync Profile in Prowlarr.",
    ],
    ["one indexer", { api: api([PROXY]) }, "✓ Sonarr 4.0.16 asks the proxy for its one indexer, and gets answers."],
    ["localhost, and answers from it", { server: LOCAL, api: api([LOCAL, LOCAL]) }],
    [
      "localhost, and no answer",
      { server: LOCAL, api: api([LOCAL], ["Check your DNS. Connection refused (localhost:9797)"]) },
      `✗ Sonarr gets no answer from http://localhost:9797 for NZB 0: Check your DNS. Connection refused (localhost:9797) In a container, that address is the container itself: set "Prowlarr Server" to the proxy's address on your network ${SET}`,
    ],
    [
      "localhost, and an error from the indexer",
      { server: LOCAL, api: api([LOCAL], ["Failed: [429:TooManyRequests]"]) },
      "✗ Sonarr gets no answer from http://localhost:9797 for NZB 0: Failed: [429:TooManyRequests]",
    ],
    [
      "a proxy with other settings",
      { api: api([PROXY], ["Failed: [502:BadGateway]"]) },
      "✗ Sonarr gets no answer from http://nas:9797 for NZB 0: Failed: [502:BadGateway] If the proxy's settings were changed, restart it.",
    ],
    [
      "tests that failed for two reasons",
      { api: api([PROXY, PROXY, PROXY], ["Late.", "Late.", "No."]) },
      "✗ Sonarr gets no answer from http://nas:9797 for 2 indexers (the first is NZB 0): Late.",
      "✗ Sonarr gets no answer from http://nas:9797 for NZB 2: No.",
    ],
    [
      "an indexer that was not tested",
      { api: api([PROXY, PROXY], [], { tests: new Map([[0, ""]]) }) },
      "✗ Sonarr gets no answer from http://nas:9797 for NZB 1: it was not tested, and its log says why.",
    ],
    [
      "no test",
      { api: api([AWAY], [], { tests: "not asked" }), server: AWAY },
      "? Sonarr is not asked to test its indexers while no proxy answers for Prowlarr.",
    ],
    [
      "a test without an answer",
      { api: api([PROXY], [], { tests: "no result" }) },
      "? Sonarr: its own test of its indexers gave no result: press Test All Indexers under its Settings → Indexers.",
    ],
  ])("a client: %s", (_, one, ...expected) => {
    const lines = newLines([sonarr(one)]);
    expect(lines).toEqual(expected);
  });

  test("a second Sonarr's key goes behind the first one's", () => {
    const second = (api: Client["api"]) =>
      newLines([sonarr(), sonarr({ name: "Sonarr 4K", address: "http://nas:8990", api })]);
    const copy =
      "copy its key from Sonarr → Settings → General into SONARR_API_KEY, with a comma between it and the other's.";
    expect(second("key refused")).toEqual([
      `✗ Sonarr 4K: http://nas:8990 refuses SONARR_API_KEY: if that is its address (Prowlarr → Settings → Apps), ${copy}`,
    ]);
    expect(newLines([sonarr(), sonarr({ name: "Radarr", kind: "Radarr", api: "key refused" })])[0]).toEndWith(
      "into RADARR_API_KEY.",
    );
  });

  const ONCE = "and no release is downloaded twice for them.";
  const again = (fewer: number) =>
    `or the same release is downloaded again and again, because its file has ${fewer} fewer.`;
  const NO_POINTS =
    "the tag brings no points: import TRaSH Guides' custom format VFF, give it a score there, such as 1800, and set Minimum Custom Format Score Increment to one more, such as 1801 (Settings → Profiles).";
  const scores = (tagged: number, untagged: number, file: number) => ({ scores: [{ tagged, untagged, file }] });
  test.each<[what: string, more: Partial<Profile>, expected: string]>([
    [
      "one too few",
      { increment: 1800 },
      `✗ the tag brings 1800 points: set Increment to 1801 (now 1800), ${again(1800)}`,
    ],
    ["enough", { increment: 1801 }, `✓ the tag brings 1800 points, ${ONCE}`],
    [
      "a format that takes points without French",
      { ...scores(1800, -10_000, 0), increment: 1 },
      `✗ the tag brings 11800 points: set Increment to 1801 (now 1), ${again(1800)} Releases below 0 points are refused.`,
    ],
    [
      "a file with the same points",
      { ...scores(1800, 0, 1800), increment: 1 },
      `✓ the tag brings 1800 points, ${ONCE}`,
    ],
    [
      "two samples, of which the dearer counts",
      {
        scores: [
          { tagged: 601, untagged: 0, file: 0 },
          { tagged: 101, untagged: 0, file: 0 },
        ],
        increment: 1,
      },
      `✗ the tag brings 601 points: set Increment to 602 (now 1), ${again(601)}`,
    ],
    [
      "one point",
      { ...scores(1, 0, 0), increment: 1 },
      `✗ the tag brings 1 point: set Increment to 2 (now 1), ${again(1)}`,
    ],
    [
      "a dearer sample whose file has all it needs",
      {
        scores: [
          { tagged: 1800, untagged: 0, file: 500 },
          { tagged: 60, untagged: 0, file: 0 },
        ],
        cutoff: 100,
        increment: 1,
      },
      `✗ the tag brings 1800 points: set Increment to 61 (now 1), ${again(60)}`,
    ],
    ["no upgrades", { upgradeAllowed: false, increment: 1 }, `✓ the tag brings 1800 points, ${ONCE}`],
    ["a file that has all it needs", { cutoff: 0, increment: 1 }, `✓ the tag brings 1800 points, ${ONCE}`],
    [
      "an increment of 0, which counts as 1",
      { increment: 0 },
      `✗ the tag brings 1800 points: set Increment to 1801 (now 0), ${again(1800)}`,
    ],
    [
      "a client without the setting",
      { increment: undefined },
      `✗ the tag brings 1800 points, and this Sonarr has no Increment: update it, ${again(1800)}`,
    ],
    [
      "a minimum that only tagged releases reach",
      { minimum: 1800 },
      `✓ the tag brings 1800 points, ${ONCE} Releases below 1800 points are refused.`,
    ],
    ["no points", scores(0, 0, 0), `✗ ${NO_POINTS}`],
    ["points that the tag costs", scores(-5, 0, 0), `✗ ${NO_POINTS}`],
    [
      "Radarr's language Original",
      { language: "Original" },
      "✗ set Language to French, or to Any if your custom formats sort the languages (now Original), or a release that its indexer calls French alone is rejected.",
    ],
    ["Radarr's language Any", { language: "Any" }, `✓ the tag brings 1800 points, ${ONCE}`],
    ["Radarr's language French", { language: "French" }, `✓ the tag brings 1800 points, ${ONCE}`],
  ])("a profile: %s", (_, more, expected) => {
    const lines = [...judge(world([sonarr({ api: api([PROXY], [], { profiles: [{ ...HD, ...more }] }) })], [NZB]))];
    const written = expected
      .replace(/^(.) /, '$1 Sonarr, profile "HD": ')
      .replace(/(?<!Score )Increment/, "Minimum Custom Format Score Increment");
    expect(lines.filter((line) => line.includes('profile "HD"'))).toContain(written);
  });

  test.each<[what: string, profiles: Profile[], ...expected: string[]]>([
    ["one in use without points", [HD, NOTHING], `✗ Sonarr, profile "SD": ${NO_POINTS}`],
    [
      "two in use without points, in one line",
      [HD, NOTHING, { ...NOTHING, name: "4K" }],
      `✗ Sonarr, profiles "SD", "4K": ${NO_POINTS}`,
    ],
    [
      "points only in one that nothing uses",
      [NOTHING, { ...HD, isUsed: false }],
      `✗ Sonarr, profile "SD": ${NO_POINTS}`,
    ],
    [
      "one that nothing uses, without points or increment",
      [HD, { ...NOTHING, isUsed: false }, { ...HD, name: "4K", isUsed: false, increment: 1 }],
    ],
    [
      "an empty library, in which each may come into use",
      [
        { ...HD, isUsed: false },
        { ...NOTHING, isUsed: false },
      ],
      `✗ Sonarr, profile "SD": ${NO_POINTS}`,
    ],
  ])("the profiles: %s", (_, profiles, ...expected) => {
    const lines = newLines([sonarr({ api: api([PROXY, PROXY], [], { profiles }) })]);
    expect(lines).toEqual(expected);
  });

  const NO_LANGUAGE = { items: 60, reported: 0, french: 0, tagged: 0 };
  test.each<[what: string, indexers: Indexer[], ...expected: string[]]>([
    [
      "one of three",
      [NZB, indexer(12, "A tracker", NO_LANGUAGE), indexer(7, "", new Problem("no answer within 30 s"))],
      "The latest releases of each indexer:",
      "   3  NZB        100 releases, 92 report a language, 14 French, 9 to be tagged",
      "  12  A tracker   60 releases, none reports a language: the proxy can do nothing here",
      "   7             no answer within 30 s",
      "? 1 of 3 report languages, but 1 gave no releases: run this again later.",
    ],
    [
      "none, but one is silent",
      [indexer(1, "A", NO_LANGUAGE), indexer(2, "B", { ...NO_LANGUAGE, items: 0 })],
      "The latest releases of each indexer:",
      "  1  A   60 releases, none reports a language: the proxy can do nothing here",
      "  2  B  no releases",
      "? 0 of 2 report languages, but 1 gave no releases: run this again later.",
    ],
    [
      "none",
      [indexer(1, "A", { ...NO_LANGUAGE, items: 1 })],
      "The latest releases of each indexer:",
      "  1  A    1 release, none reports a language: the proxy can do nothing here",
      "✗ No enabled indexer reports languages: the proxy is of use only with one that does.",
    ],
    ["not one", [], "✗ Prowlarr has no enabled indexer: add or enable one that reports languages."],
  ])("Prowlarr's indexers: %s", (_, indexers, ...expected) => expect([...judgeIndexers(indexers)]).toEqual(expected));
});

describe.concurrent("--check asks", () => {
  const json = (body: unknown, status = 200): Reply => ({ status, headers: JSON_TYPE, body: JSON.stringify(body) });
  /** What a program answers to a path: this value, or this status, or nothing, or whatever the function does. */
  type Answers = Record<string, unknown>;
  const answer = (answers: Answers, path: string, request: Received, response: ServerResponse): Reply | void => {
    const found = answers[path];
    if (typeof found === "function") return found(request, response);
    return found === undefined ? { status: 404 } : typeof found === "number" ? { status: found } : json(found);
  };
  const fieldsOf = (values: Record<string, unknown>) =>
    Object.entries(values).map(([name, value]) => ({ name, value }));
  const application = (name: string, baseUrl: string, prowlarrUrl: string, syncLevel = "fullSync") => {
    return {
      name,
      implementation: name.split(" ")[0],
      syncLevel,
      fields: fieldsOf({ prowlarrUrl, baseUrl, apiKey: "********" }),
    };
  };
  const LIDARR = { ...application("Lidarr", "http://x", "http://y", "disabled"), fields: [] };

  /** So many releases, of which so many report a language and so many are French, five of them already in their title. */
  const releases = (size: number, reporting: number, french: number) => () => ({
    headers: XML,
    body: searchResponse(
      ...Array.from({ length: size }, (_, n) => {
        const title = `Show.S01E${n}.${n < 5 ? "VFF." : ""}1080p.WEB-GRP`;
        return n < reporting ? item(title, n < french ? "French" : "English") : item(title);
      }),
    ),
  });
  const PROWLARR_ANSWERS: Answers = {
    "/api/v1/system/status": { appName: "Prowlarr", version: "2.3.6" },
    "/api/v1/indexer": [
      { id: 3, name: "NZB", enable: true },
      { id: 5, name: "Tracker", enable: true },
      { id: 11, name: "Off", enable: false },
    ],
    "/3/api": releases(100, 92, 14),
    "/5/api": releases(60, 0, 0),
  };
  const prowlarrWith = (applications: unknown, more: Answers = {}) =>
    backendThat((request, response) => {
      if (request.headers["x-api-key"] !== "PROXYKEY") return { status: 401 };
      const answers = { ...PROWLARR_ANSWERS, "/api/v1/applications": applications, ...more };
      return answer(answers, request.url.replace(/\?.*/, ""), request, response);
    });

  /** Custom formats as French users have them, and what a title must hold for each. */
  const FORMATS: Record<string, (title: string) => boolean> = {
    VFF: (title) => /\bVFF\b/.test(title),
    "no French": (title) => !/\b(?:VFF|FRENCH)\b/.test(title),
    "French, and no VFF": (title) => /\bFRENCH\b/.test(title),
    // TRaSH's: the original language, French, and the word MULTi.
    "Original + French": (title) => /\bEnglish\b/.test(title) && /\bMULTi\b/.test(title),
  };
  const FORMAT_NAMES = Object.keys(FORMATS);
  /** A quality profile with these scores. */
  const profile = (scores: Record<string, number>, more: Record<string, unknown> = {}) => ({
    id: 1,
    name: "HD",
    upgradeAllowed: true,
    cutoffFormatScore: 10_000,
    minFormatScore: 0,
    minUpgradeFormatScore: 1,
    formatItems: FORMAT_NAMES.map((name, format) => ({ name, format, score: scores[name] ?? 0 })),
    ...more,
  });
  const HD = profile({ VFF: 1800 }, { minUpgradeFormatScore: 1801 });
  const LIBRARY = [
    { title: "Les Revenants", year: 2012, qualityProfileId: 1, originalLanguage: { id: 2, name: "French" } },
    { title: "Nobody's: Show", year: 2011, qualityProfileId: 1, originalLanguage: { id: 0, name: "Unknown" } },
    { title: "Grey's Anatomy", year: 2005, qualityProfileId: 1, originalLanguage: { id: 1, name: "English" } },
  ];
  /** A Sonarr or Radarr that asks these addresses. */
  const clientWith = (addresses: string[], more: Answers = {}) =>
    backendThat((request, response) => {
      if (request.headers["x-api-key"] !== "SONARRKEY") return { status: 401 };
      const { pathname, searchParams } = new URL(request.url, "http://x");
      const indexers = addresses.map((baseUrl, n) => {
        const use = { enableRss: n !== 9, enableAutomaticSearch: false, enableInteractiveSearch: false };
        return { id: n + 1, name: `NZB ${n + 1}`, ...use, fields: fieldsOf({ apiPath: "/api", baseUrl }) };
      });
      const formats = () =>
        FORMAT_NAMES.flatMap((name, id) => (FORMATS[name]!(searchParams.get("title")!) ? { id } : []));
      const answers: Answers = {
        "system/status": { version: "4.0.16" },
        indexer: indexers,
        "indexer/testall": indexers.map(({ id }) => ({ id, isValid: true, validationFailures: [] })),
        qualityprofile: [HD],
        series: LIBRARY,
        movie: LIBRARY,
        parse: () => json({ customFormats: formats() }),
        ...more,
      };
      return answer(answers, pathname.replace("/api/v3/", ""), request, response);
    });

  const KEYS = { BACKEND_API_KEY: "PROXYKEY", SONARR_API_KEY: "SONARRKEY", RADARR_API_KEY: "SONARRKEY" };
  const runCheck = async (env: Record<string, string>, command = "--check") => {
    using program = run([command], { ...KEYS, ...env });
    const { code, stdout, stderr } = await program.ended();
    expect(stdout + stderr).not.toMatch(/PROXYKEY|hunter2|SECRETKEY|SONARRKEY|undefined|NaN|\[object/i);
    const lines = stdout.trimEnd().split("\n");
    return { code, lines, stderr, faults: lines.filter((line) => line.startsWith("✗")) };
  };
  /** A check of a proxy, its Prowlarr, and one client whose indexers have these addresses. */
  const checkOne = async ({
    name = "Sonarr",
    addresses = ["PROXY/3/", "PROXY/5/"],
    server = "PROXY",
    answers = {} as Answers,
    ofProwlarr = {} as Answers,
    env = {} as Record<string, string>,
  } = {}) => {
    using other = await backendThat(() => ({ status: 404 }));
    // To --check, 127.0.0.1 may be another system's.
    const silent = `http://0.0.0.0:${await freePort()}`;
    const apps: unknown[] = [LIDARR];
    using prowlarr = await prowlarrWith(apps, ofProwlarr);
    using proxy = proxyTo(urlOf(prowlarr));
    const places = {
      PROXY: `http://0.0.0.0:${proxy.port}`,
      OTHER: urlOf(other),
      SILENT: silent,
      AWAY: "http://language-tag-proxy.invalid:8080",
    };
    const filled = (text: string) => text.replace(/^[A-Z]+/, (place) => places[place as keyof typeof places]);
    using client = await clientWith(addresses.map(filled), answers);
    apps.unshift(application(name, urlOf(client), filled(server)));
    const found = await runCheck({
      BACKEND_URL: secretUrlOf(prowlarr).replace("/it's&co", ""),
      PORT: String(proxy.port),
      ...env,
    });
    const shown = (line: string) =>
      Object.entries({ ...places, CLIENT: urlOf(client), PROWLARR: urlOf(prowlarr) }).reduce(
        (text, [name, url]) => text.replaceAll(url, name),
        line,
      );
    const asked = client.requests.map(({ method, url }) => `${method} ${url.replace("/api/v3/", "")}`);
    expect(asked.filter((request) => !request.startsWith("GET ") && request !== "POST indexer/testall")).toEqual([]);
    return { ...found, lines: found.lines.map(shown), faults: found.faults.map(shown), asked };
  };

  test("everybody, says so first, and says that all is well where all is", async () => {
    const { code, lines, stderr, asked } = await checkOne();
    expect([code, stderr, ...lines]).toEqual([
      0,
      "",
      "Asking the proxy, Prowlarr, Sonarr and Radarr …",
      expect.stringMatching(/^✓ The proxy answers on port \d+\.$/),
      "✓ Prowlarr 2.3.6 at PROWLARR accepts BACKEND_API_KEY.",
      '✓ Sonarr, profile "HD": the tag brings 1800 points, and no release is downloaded twice for them.',
      "✓ Sonarr 4.0.16 asks the proxy for all of its 2 indexers, and gets answers.",
      "The latest releases of each indexer:",
      "  3  NZB      100 releases, 92 report a language, 14 French, 9 to be tagged",
      "  5  Tracker   60 releases, none reports a language: the proxy can do nothing here",
      "✓ 1 of 2 report languages.",
      "✓ All is well.",
    ]);
    expect(asked).toEqual([...new Set(asked)]);
  });

  // What Sonarr and Radarr say of a release and its file, tried in both.
  test.each<[what: string, name: string, scores: Record<string, number>, expected: RegExp]>([
    ["1800 for VFF", "Sonarr", { VFF: 1800 }, /brings 1800 points: set .* to 1801 \(now 1\)/],
    [
      "a format that takes points without French",
      "Radarr",
      { VFF: 1800, "no French": -10_000 },
      /brings 11800 points: set .* to 1801 \(now 1\)/,
    ],
    ["TRaSH's scores", "Radarr", { "Original + French": 500 }, /brings 500 points: set .* to 501 \(now 1\)/],
    [
      "TRaSH's scores with VFF",
      "Sonarr",
      { "Original + French": 500, VFF: 101 },
      /brings 601 points: set .* to 602 \(now 1\)/,
    ],
    [
      "a second format, for French without VFF",
      "Sonarr",
      { VFF: 1800, "French, and no VFF": 1800 },
      /✓ .* brings 1800 points, and no release is downloaded twice/,
    ],
    [
      "a gain without the original language alone",
      "Sonarr",
      { VFF: 1, "Original + French": -5 },
      /brings 1 point: set .* to 2 \(now 1\)/,
    ],
  ])("the client's own parser and formats: %s", async (_, name, scores, expected) => {
    const { lines } = await checkOne({ name, answers: { qualityprofile: [profile(scores)] } });
    expect(lines.filter((line) => line.includes('profile "HD"'))).toEqual([expect.stringMatching(expected)]);
  });

  test("about a series or movie of the user's own that is neither French nor unknown", async () => {
    const titlesOf = ({ asked }: { asked: string[] }) =>
      asked
        .filter((request) => request.includes("parse"))
        .map((request) => request.replace("GET parse?title=", ""))
        .sort();
    const GREY = "Grey.s.Anatomy.S01E01";
    expect(titlesOf(await checkOne())).toEqual([
      `${GREY}.1080p.WEB.H264-GRP`,
      `${GREY}.English.1080p.WEB.H264-GRP`,
      `${GREY}.FRENCH.1080p.WEB.H264-GRP`,
      `${GREY}.FRENCH.English.1080p.WEB.H264-GRP`,
      `${GREY}.MULTi.VFF.1080p.WEB.H264-GRP`,
      `${GREY}.MULTi.VFF.English.1080p.WEB.H264-GRP`,
    ]);
    expect(titlesOf(await checkOne({ name: "Radarr" }))).toContain(
      "Grey.s.Anatomy.2005.MULTi.VFF.English.1080p.WEB.H264-GRP",
    );
    expect(titlesOf(await checkOne({ answers: { series: [] } }))).toEqual([
      "Name.S01E01.1080p.WEB.H264-GRP",
      "Name.S01E01.FRENCH.1080p.WEB.H264-GRP",
      "Name.S01E01.MULTi.VFF.1080p.WEB.H264-GRP",
    ]);
  });

  const unused = [profile({}), { ...HD, id: 2, name: "4K" }];
  const untested = (one: { asked: string[] }) => expect(one.asked).not.toContain("POST indexer/testall");
  type One = Parameters<typeof checkOne>[0];
  test.each<[what: string, one: One, ...expected: string[]]>([
    ["a profile in use", { answers: { qualityprofile: unused } }, '✗ Sonarr, profile "HD": the tag brings no points'],
    [
      "a wrong key",
      { env: { SONARR_API_KEY: "wrong" } },
      "✗ Sonarr: CLIENT refuses SONARR_API_KEY: if that is its address",
    ],
    ["no key", { env: { SONARR_API_KEY: "" } }, "✗ Sonarr: the check can't see whom it asks"],
    ["the second of two keys", { env: { SONARR_API_KEY: "wrong, SONARRKEY" } }],
    [
      "a fault in one resource",
      { answers: { qualityprofile: 500 } },
      "? Sonarr: CLIENT answers 500 to qualityprofile: see its log.",
    ],
    [
      "a fault in its test",
      { answers: { "indexer/testall": 500 } },
      "? Sonarr: its own test of its indexers gave no result: press Test All Indexers under its Settings → Indexers.",
    ],
    ["a start", { answers: { "system/status": 503 } }, "? Sonarr: CLIENT is still starting: try again in a minute."],
    ["another program", { answers: { "system/status": 404 } }, "✗ Sonarr: CLIENT is not a Sonarr: "],
    ["another program's page", { answers: { "system/status": "<html>" } }, "✗ Sonarr: CLIENT is not a Sonarr: "],
    [
      "a missing number",
      { answers: { qualityprofile: [{ ...HD, cutoffFormatScore: undefined }] } },
      "? Sonarr: the answer from CLIENT is not one that this check understands",
    ],
    [
      "an odd answer",
      { answers: { series: [null] } },
      "? Sonarr: the answer from CLIENT is not one that this check understands",
    ],
    [
      "another one",
      { answers: { qualityprofile: [{}] } },
      "? Sonarr: the answer from CLIENT is not one that this check understands",
    ],
    [
      "an answer of another program",
      { answers: { indexer: "x" } },
      "? Sonarr: the answer from CLIENT is not one that this check understands",
    ],
    [
      "a silent indexer of Prowlarr's, beside one that reports languages",
      { ofProwlarr: { "/5/api": () => undefined }, env: { BACKEND_TIMEOUT: "1" } },
      "? 1 of 2 report languages, but 1 gave no releases",
    ],
    [
      "no answer from one of Prowlarr's indexers",
      { ofProwlarr: { "/3/api": 429 } },
      "? 0 of 2 report languages, but 1 gave no releases",
    ],
    [
      "odd indexers of Prowlarr's",
      { ofProwlarr: { "/api/v1/indexer": [null] } },
      "✗ the answer from PROWLARR is not one that this check understands",
    ],
    [
      "indexers that are out of use, or not Prowlarr's",
      { addresses: [...Array.from({ length: 9 }, () => "PROXY/3/"), "OTHER/5/", "https://api.indexer.test"] },
    ],
    [
      "addresses that only the client can reach",
      { addresses: ["AWAY/3/"], server: "AWAY" },
      "? Sonarr 4.0.16 gets answers for its one indexer, but whether AWAY is the proxy can't be seen from here.",
    ],
  ])("what it can, and has one line for what it can't: %s", async (_, one, ...expected) => {
    const { code, lines } = await checkOne(one);
    const found = lines.filter((line) => /^[✗?]/.test(line)).slice(0, -1);
    expect(found).toEqual(expected.map((line) => expect.stringContaining(line)));
    expect(code).toBe(expected.some((line) => line.startsWith("✗")) ? 1 : 0);
  });

  test("no client for a test that would fail, because that would put its indexers on hold", async () => {
    const silent = await checkOne({ addresses: ["PROXY/3/", "SILENT/5/"] });
    untested(silent);
    expect(silent.faults[0]).toStartWith("✗ Sonarr asks SILENT, which is not the proxy's, for NZB 2: ");
    const none = await checkOne({ addresses: ["https://api.indexer.test"] });
    untested(none);
    const stopped = await checkOne({ addresses: ["AWAY/3/"], server: "AWAY", env: { PORT: String(await freePort()) } });
    untested(stopped);
    expect(stopped.faults[0]).toMatch(/^✗ No proxy answers on port/);
    expect(stopped.lines).toContain("? Sonarr is not asked to test its indexers while no proxy answers for Prowlarr.");
  });

  test("who answers on the port of a proxy that doesn't run, and sends nobody elsewhere for it", async () => {
    using other = await backendThat(() => ({ status: 200, body: "OK" }));
    const own = `http://0.0.0.0:${other.port}`;
    const { faults } = await checkOne({ server: own, addresses: [`${own}/3/`], env: { PORT: String(other.port) } });
    expect(faults).toEqual([
      expect.stringMatching(/^✗ Something else answers on port/),
      "✗ 1 thing to fix, from the top down.",
    ]);
    expect(other.requests.map(({ url, headers }) => [url, headers["x-api-key"]])).toEqual([
      ["/health", undefined],
      ["/health", undefined],
    ]);
    // As FlareSolverr answers.
    using alike = await backendThat(() => json({ status: "ok" }));
    expect((await checkOne({ env: { PORT: String(alike.port) } })).faults[0]).toStartWith(
      "✗ Something else answers on port",
    );
    using ssh = await rawBackend("SSH-2.0-OpenSSH_9.2\r\n");
    expect((await checkOne({ env: { PORT: String(ssh.port) } })).faults[0]).toStartWith(
      "✗ Something else answers on port",
    );
  });

  test("for tests, and has one line for what failed alike", async () => {
    const failed = (id: number) => {
      const errorMessage = `HTTP request failed: [401:Unauthorized] [GET] at [http://x/${id}/api?t=caps]`;
      return { id, isValid: false, validationFailures: [{ errorMessage }] };
    };
    const { faults } = await checkOne({ answers: { "indexer/testall": [failed(1), failed(2)] } });
    expect(faults).toEqual([
      expect.stringMatching(/^✗ Sonarr gets no answer from PROXY for 2 indexers \(the first is NZB 1\): .*\/…\/api/),
      "✗ 1 thing to fix, from the top down.",
    ]);
  });

  test("nobody further where BACKEND_URL is a proxy's own address", async () => {
    using proxy = proxyTo("http://127.0.0.1:1");
    const { code, faults } = await runCheck({ BACKEND_URL: urlOf(proxy), PORT: String(proxy.port) });
    expect([code, faults[0]]).toEqual([1, "✗ BACKEND_URL is the proxy's own address: set it to Prowlarr's."]);
  });

  test("Prowlarr by way of the proxy, too: it may run with older settings", async () => {
    using older = proxyTo(`http://127.0.0.1:${await freePort()}`);
    const one = await checkOne({ env: { PORT: String(older.port) } });
    const { code, faults } = one;
    untested(one);
    expect([code, faults[0]]).toEqual([
      1,
      expect.stringMatching(/^✗ The proxy on port \d+ does not reach Prowlarr, but this check does: /),
    ]);
  });

  test("at once four clients that never answer, and waits for none of them longer than its time", async () => {
    using client = await clientWith(["PROXY/3/"], { "system/status": () => undefined });
    const names = ["Sonarr", "Sonarr 2", "Radarr", "Radarr 2"];
    using prowlarr = await prowlarrWith(names.map((name) => application(name, urlOf(client), "http://x")));
    const started = performance.now();
    const { lines } = await runCheck({ BACKEND_URL: urlOf(prowlarr), BACKEND_TIMEOUT: "3" });
    expect(lines.filter((line) => /^\? .* gives no answer here \(TimeoutError\)/.test(line))).toHaveLength(4);
    expect(performance.now() - started).toBeLessThan(11_000);
  });

  test("with a limit to what an answer may hold", async () => {
    const endless = async (_: unknown, response: ServerResponse) => {
      response.writeHead(200, JSON_TYPE);
      const piece = Buffer.alloc(1_000_000, " ");
      while (!response.destroyed)
        if (!response.write(piece)) await Promise.race([once(response, "drain"), Bun.sleep(50)]);
    };
    using health = await backendThat(endless);
    const { lines, code } = await checkOne({
      answers: { "indexer/testall": endless },
      env: { PORT: String(health.port) },
    });
    expect(code).toBe(1);
    expect(lines[1]).toStartWith("✗ Something else answers on port");
    expect(lines).toContain(
      "? Sonarr: its own test of its indexers gave no result: press Test All Indexers under its Settings → Indexers.",
    );
  });

  test("and shows no key, whatever and however much anyone answers", async () => {
    const hex = "0123456789ABCDEF0123456789ABCDEF";
    const secrets =
      words(`http://bob:SECRETKEY@h "apiKey":"SECRETKEY" apikey%3DSECRETKEY rsskey=SECRETKEY torrent_pass=SECRETKEY
      password=SECRETKEY http://h/?r=SECRETKEY&t=x X-Api-Key:SECRETKEY token=SECRETKEY ${hex} sonarrkey
      auth=SECRETKEY ${hex.replace(/.{8}(?=.)/g, "$&-")}`);
    // A key that a text is cut within, too.
    const cut = `${"x".repeat(280)}${hex}`;
    const failures = [...secrets, "Bearer SECRETKEY", "Basic SECRETKEY"].map((errorMessage) => ({ errorMessage }));
    const failed = (id: number, validationFailures: unknown) => ({ id, isValid: false, validationFailures });
    const named = { ...HD, name: `SONARRKEY ${"long ".repeat(20_000)}` };
    const answers = {
      "indexer/testall": [failed(1, failures), failed(2, [{ errorMessage: cut }])],
      qualityprofile: [named],
    };
    const { lines, faults, stderr } = await checkOne({ answers });
    expect(stderr).toBe("");
    expect(faults).toEqual([
      expect.stringMatching(/^✗ Sonarr gets no answer from PROXY for NZB 1: .*apikey%3D….* … …/),
      expect.stringMatching(/^✗ Sonarr gets no answer from PROXY for NZB 2: x{280}…$/),
      "✗ 2 things to fix, from the top down.",
    ]);
    expect(lines.join("\n")).not.toMatch(/[\dA-F]{8}/);
    expect(lines.every((line) => line.length < 1000)).toBe(true);
    expect(lines.some((line) => line.includes('profile "… long'))).toBe(true);

    const evil = { toString: 1, valueOf: 1 };
    for (const ofProwlarr of [
      { "/api/v1/system/status": { appName: "Prowlarr", version: evil } },
      { "/api/v1/indexer": [{ id: evil, name: evil, enable: true }] },
      {
        "/api/v1/system/status": () => ({
          headers: { ...JSON_TYPE, "content-encoding": "gzip" },
          body: PACKED.subarray(0, 20),
        }),
      },
    ]) {
      const { code, stderr, faults } = await checkOne({ ofProwlarr, answers: { "system/status": { version: evil } } });
      expect([code, stderr, faults[0]]).toEqual([
        1,
        "",
        expect.stringMatching(/the answer from PROWLARR is not|PROWLARR answers \(200\), but not as/),
      ]);
    }
  });

  test.each([
    [
      "the key is wrong",
      { BACKEND_API_KEY: "wrong" },
      /refuses BACKEND_API_KEY: see that this is Prowlarr's address, and copy/,
    ],
    ["there is no key", { BACKEND_API_KEY: "" }, /BACKEND_API_KEY is not set, so this ends here: copy the key/],
    [
      "nobody is there",
      { BACKEND_URL: "http://127.0.0.1:1" },
      /http:\/\/127.0.0.1:1 can't be reached: check that it runs/,
    ],
  ])("Prowlarr, and says in one sentence what it needs where %s", async (_, env: Record<string, string>, expected) => {
    using prowlarr = await prowlarrWith([]);
    using proxy = proxyTo(urlOf(prowlarr));
    const all = { BACKEND_URL: urlOf(prowlarr), PORT: String(proxy.port), ...env };
    const { code, faults } = await runCheck(all);
    expect([code, faults]).toEqual([1, [expect.stringMatching(expected), "✗ 1 thing to fix, from the top down."]]);
    const list = await runCheck(all, "--indexers");
    expect([list.code, list.lines, list.stderr]).toEqual([1, [""], expect.stringMatching(expected)]);
    expect(list.stderr.trimEnd()).not.toContain("\n");
  });

  test.each(["<html>", "null", "", '{"appName":"Lidarr","version":"2"}'])(
    "whether it is Prowlarr: %j is not",
    async (body) => {
      using backend = await backendThat(() => ({ headers: HTML, body }));
      const { code, faults } = await runCheck({ BACKEND_URL: urlOf(backend) });
      expect([code, faults[1]]).toEqual([1, expect.stringMatching(/not as Prowlarr does: set BACKEND_URL/)]);
    },
  );

  test("--indexers has Prowlarr's indexers and their sum, and nothing else", async () => {
    using prowlarr = await prowlarrWith([]);
    const { code, lines, stderr } = await runCheck({ BACKEND_URL: urlOf(prowlarr) }, "--indexers");
    expect([code, stderr, ...lines]).toEqual([
      0,
      "",
      "The latest releases of each indexer:",
      "  3  NZB      100 releases, 92 report a language, 14 French, 9 to be tagged",
      "  5  Tracker   60 releases, none reports a language: the proxy can do nothing here",
      "✓ 1 of 2 report languages.",
    ]);
    using silent = await prowlarrWith([], { "/3/api": releases(1, 0, 0) });
    const none = await runCheck({ BACKEND_URL: urlOf(silent) }, "--indexers");
    expect([none.code, none.faults]).toEqual([0, [expect.stringMatching(/^✗ No enabled indexer reports languages/)]]);
  });
});

// ─── The guides ─────────────────────────────────────────────────────────────────────────────────────────────────────

describe("the guides", () => {
  const read = (name: string) => readFileSync(`${import.meta.dir}/${name}`, "utf8");
  const [english, french, forDevelopers] = ["README.md", ".github/LISEZMOI.md", ".github/CONTRIBUTING.md"].map(read);
  /** A guide's blocks of one kind, line by line, without what each language says in its own words. */
  const linesOf = (guide: string, kind: string) =>
    [...guide.matchAll(new RegExp(`^\`\`\`${kind}\n([^]*?)^\`\`\``, "gm"))]
      .flatMap(([, block]) => block!.replaceAll("&&\n", "&&").split("\n"))
      .map((line) =>
        line
          .replace(/ *#.*/, "")
          .replace("votre-cle", "your-key")
          .replace(/ {2,}(?=sudo)/, " "),
      )
      .filter(Boolean);

  test.each(["ini", "yaml"])("in both languages have the same blocks of %s", (kind) => {
    expect(linesOf(french!, kind)).toEqual(linesOf(english!, kind));
    expect(linesOf(french!, kind).length).toBeGreaterThan(10);
  });

  test("in both languages have the same commands", () => {
    expect(linesOf(french!, "sh").sort()).toEqual(linesOf(english!, "sh").sort());
    for (const command of ["npx -y bun@1.4.5 run demo", "npx -y bun@1.4.5 run test"])
      expect(linesOf(english!, "sh")).toContain(command);
  });

  test("in both languages name the same increments, tried in Sonarr and Radarr", () => {
    const increments = (guide: string) =>
      [...guide.matchAll(/^\|[^`\n]*\| (\d+) +\|$/gm)].map(([, number]) => Number(number));
    expect([increments(english!), increments(french!)]).toEqual([
      [1801, 1801, 501, 602],
      [1801, 1801, 501, 602],
    ]);
  });

  test.each([
    "BACKEND_URL",
    "BACKEND_API_KEY",
    "SONARR_API_KEY",
    "RADARR_API_KEY",
    "PORT",
    "BACKEND_TIMEOUT",
    "LOG_LEVEL",
  ])("explain %s", (name) => {
    for (const guide of [english!, french!]) expect(guide).toMatch(new RegExp(`^\\| .*\`${name}\`.* \\|`, "m"));
  });

  test("are each of one sitting", () => {
    for (const guide of [english!, french!]) expect(guide.trimEnd().split("\n").length).toBeLessThanOrEqual(280);
  });

  test("explain in French what --check really says", () => {
    const program = read("proxy.ts")
      .replaceAll("${INCREMENT}", "Minimum Custom Format Score Increment")
      .replaceAll("\\'", "'");
    const quoted = [...french!.matchAll(/^\| (`[✗?] .*?`) +\|/gm)].map(([, cell]) => cell).join(" ");
    // What stands between names, numbers and … is the program's own, but for a first "set".
    const pieces = quoted
      .split(/[`…✗?]|, |\b(?:Sonarr|SONARR_API_KEY|1801)\b|: (?:set|press)?/)
      .map((piece) => piece.trim());
    expect(pieces.length).toBeGreaterThan(30);
    expect(pieces.filter((piece) => !program.includes(piece.replace(/^set /, "")))).toEqual([]);
  });

  const rows = [...forDevelopers!.matchAll(/^\| `([^`]+)` +\| (?:`([^`]+)`|unchanged) +\|/gm)];
  test.each(rows.map(([, title, expected]) => [title!, expected ?? title!]))(
    "say what becomes of %s: %s",
    (title, expected) => expect(tag(title)).toBe(expected),
  );
});

// ─── Dice ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** The same numbers for the same seed (mulberry32). */
class Dice {
  constructor(private state: number) {}

  number(): number {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  below(limit: number): number {
    return Math.floor(this.number() * limit);
  }

  one<Thing>(things: readonly Thing[]): Thing {
    return things[this.below(things.length)]!;
  }

  chance(of: number): boolean {
    return this.number() < of;
  }

  some<Thing>(least: number, most: number, make: () => Thing): Thing[] {
    return Array.from({ length: least + this.below(most - least + 1) }, make);
  }

  shuffled<Thing>(things: readonly Thing[]): Thing[] {
    return things.toSorted(() => this.number() - 0.5);
  }
}

/** Runs a check many times with other dice; what fails is reported with the seed and the case that it failed with. */
function many(times: number, check: (dice: Dice) => string | undefined): void {
  for (let run = 0; run < times; run++) {
    let problem: string | undefined;
    try {
      problem = check(new Dice(SEED + run * 7919));
    } catch (error) {
      problem = String((error as Error).stack);
    }
    if (problem) throw new Error(`SEED=${SEED}, run ${run}: ${problem}`);
  }
}
