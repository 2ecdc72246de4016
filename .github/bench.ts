#!/usr/bin/env bun
/**
 * Prints the table in CONTRIBUTING: the processor time that a search costs the proxy, and costs a bare forwarder, which
 * only passes bytes on. It needs Linux, and takes a minute, and half a minute more for each further version:
 *
 *     npx -y bun@1.4.5 .github/bench.ts                            this version
 *     npx -y bun@1.4.5 .github/bench.ts proxy.ts ../old/proxy.ts   two side by side; name one twice to see the noise
 *
 * All run at once, before the same backend, and are asked in turn, so that a computer that slows down slows all of them
 * down. Each figure is the median of ROUNDS (7) rounds of SECONDS (1).
 */
const { ROUNDS = "7", SECONDS = "1" } = process.env;

// ─── What is asked for ──────────────────────────────────────────────────────────────────────────────────────────────

const TITLES = [
  (n: number) => `The.Show.${n}.S01E10.1080p.WEB.H264-GRP`,
  (n: number) => `A Movie &amp; Company ${n} 1999 MULTi 2160p BluRay x265-TEAM`,
  (n: number) => `Another.Movie.${n}.2007.1080p.DSNP.WEB-DL.DDP5.1.H.264-ABC`,
  (n: number) => `Le.Film.D.Un.Été.${n}.2019.720p.HDTV.x264-ÇA`,
];

/** An item as Prowlarr writes it. */
function itemOf(number: number, isFrench: boolean): string {
  const link = `http://prowlarr:9696/1/download?apikey=${"0123456789abcdef".repeat(2)}&amp;link=${"QWxhZGRpbjpvcGVuIHNlc2FtZQ".repeat(8)}&amp;file=x`;
  const languages = isFrench ? ["English", "French"] : ["English"];
  const attributes = languages.map((language) => `<newznab:attr name="language" value="${language}" />`);
  return `
    <item>
      <title>${TITLES[number % TITLES.length]!(number)}</title>
      <description />
      <guid>https://indexer.example/details/${number}abcdef0123456789</guid>
      <prowlarrindexer id="1" type="private">Indexer</prowlarrindexer>
      <pubDate>Fri, 14 Mar 2025 17:10:42 +0000</pubDate>
      <size>${1_000_000 + number * 4321}</size>
      <link>${link}</link>
      <category>5040</category>
      <enclosure url="${link}" length="${1_000_000 + number * 4321}" type="application/x-nzb" />
      <newznab:attr name="category" value="5040" />
      ${attributes.join("\n      ")}
      <newznab:attr name="tvdbid" value="12345" />
      <newznab:attr name="files" value="55" />
    </item>`;
}

/** A search response. Each `every`-th release is French, and none if that is 0. */
function feedOf(items: number, every: number, first = 0): Buffer {
  const all = Array.from({ length: items }, (_, n) => itemOf(first + n, every > 0 && n % every === 0));
  return Buffer.from(`<?xml version="1.0" encoding="UTF-8"?>
<rss version="1.0" xmlns:newznab="http://www.newznab.com/DTD/2010/feeds/attributes/">
  <channel>
    <title>Prowlarr</title>${all.join("")}
  </channel>
</rss>`);
}

/** What is searched for, in words and by how many clients at once. The answers take turns. */
const SEARCHES: Record<string, { what: string; clients: number; feeds: () => Buffer[] }> = {
  same: { what: "100 items, all French, the same each time", clients: 8, feeds: () => [feedOf(100, 1)] },
  new: {
    what: "100 items, all French, new titles each time",
    clients: 8,
    feeds: () => Array.from({ length: 40 }, (_, n) => feedOf(100, 1, 10_000 + 100 * n)),
  },
  none: { what: "100 items, none French", clients: 8, feeds: () => [feedOf(100, 0)] },
  large: { what: "5,000 items, 1 in 3 French", clients: 2, feeds: () => [feedOf(5000, 3)] },
};

// ─── Who answers ────────────────────────────────────────────────────────────────────────────────────────────────────

function serveBackend(port: number): void {
  const feeds = Object.entries(SEARCHES).map(([name, search]) => [name, search.feeds()] as const);
  const answers = new Map(feeds);
  let turn = 0;
  Bun.serve({
    port,
    fetch: (request) => {
      const feeds = answers.get(new URL(request.url).searchParams.get("q")!);
      return new Response(feeds && feeds[turn++ % feeds.length]!, {
        headers: { "content-type": "application/rss+xml" },
      });
    },
  });
}

/** The least that Bun itself needs to pass an answer on. */
function serveBare(port: number, backend: string): void {
  Bun.serve({
    port,
    fetch: async (request) => {
      const { pathname, search } = new URL(request.url);
      const response = await fetch(backend + pathname + search, { headers: request.headers, decompress: false });
      return new Response(response.body, response);
    },
  });
}

// ─── Who asks ───────────────────────────────────────────────────────────────────────────────────────────────────────

type Server = { name: string; url: string; child: Bun.Subprocess };

/** Starts a server in a process of its own, and waits until it answers. */
async function start(name: string, port: number, command: string[], env: Record<string, string> = {}): Promise<Server> {
  const url = `http://127.0.0.1:${port}`;
  const child = Bun.spawn([process.execPath, ...command], { env: { ...process.env, ...env }, stdout: "ignore" });
  while (!(await fetch(`${url}/health`).catch(() => undefined))) {
    if (child.exitCode !== null) throw new Error(`${name} ended at once.`);
    await Bun.sleep(20);
  }
  return { name, url, child };
}

/** The processor time that a process has used, in milliseconds: Linux counts in hundredths of a second. */
async function processorTime({ child }: Server): Promise<number> {
  const stat = await Bun.file(`/proc/${child.pid}/stat`).text();
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

/** The most memory that a process has had, in MiB. */
async function peakMemory({ child }: Server): Promise<number> {
  const status = await Bun.file(`/proc/${child.pid}/status`).text();
  return Number(/VmHWM:\s+(\d+)/.exec(status)![1]) / 1024;
}

/** Searches for as long as a round takes. Returns the processor time that a search cost, in milliseconds. */
async function costOfSearch(server: Server, search: string): Promise<number> {
  const before = await processorTime(server);
  const end = performance.now() + Number(SECONDS) * 1000;
  let searches = 0;
  const client = async () => {
    for (; performance.now() < end; searches++) {
      const response = await fetch(`${server.url}/1/api?t=tvsearch&apikey=key&q=${search}`);
      if (response.status !== 200) throw new Error(`${server.name} answers ${response.status}.`);
      await response.arrayBuffer();
    }
  };
  await Promise.all(Array.from({ length: SEARCHES[search]!.clients }, client));
  return ((await processorTime(server)) - before) / searches;
}

const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!;

/** Asks the servers in turn for each kind of search, the bare forwarder first, and prints the table. */
async function compare(servers: Server[]): Promise<void> {
  const row = (cells: string[]) => console.log(`| ${cells.join(" | ")} |`);
  row(["Search response", ...servers.map(({ name }) => name)]);
  row(["---", ...servers.map(() => "---")]);
  for (const [search, { what }] of Object.entries(SEARCHES)) {
    const costs = servers.map((): number[] => []);
    for (let round = 0; round < Number(ROUNDS); round++)
      for (const [n, server] of servers.entries()) costs[n]!.push(await costOfSearch(server, search));
    const [bare, ...others] = costs.map(median) as [number, ...number[]];
    row([
      what,
      `${bare.toFixed(2)} ms`,
      ...others.map((cost) => `${cost.toFixed(2)} ms (${(bare / cost).toFixed(2)})`),
    ]);
  }
  const peaks = await Promise.all(servers.map(peakMemory));
  row(["Peak memory", ...peaks.map((peak) => `${peak.toFixed(0)} MiB`)]);
}

async function measure(files: string[]): Promise<void> {
  let port = 20_000 + Math.floor(Math.random() * 10_000);
  const servers: Server[] = [];
  try {
    const backend = await start("The backend", ++port, [import.meta.path, "--backend", String(port)]);
    servers.push(
      backend,
      await start("Bare forwarder", ++port, [import.meta.path, "--bare", String(port), backend.url]),
    );
    for (const file of files)
      servers.push(await start(file, ++port, [file], { BACKEND_URL: backend.url, PORT: String(port) }));
    await compare(servers.slice(1));
  } finally {
    for (const { child } of servers) child.kill();
  }
}

const [role, port, backend] = Bun.argv.slice(2);
if (role === "--backend") serveBackend(Number(port));
else if (role === "--bare") serveBare(Number(port), backend!);
else await measure(Bun.argv.length > 2 ? Bun.argv.slice(2) : ["proxy.ts"]);
