// Uses the client with the real service.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Client, type CrawlExportLine, type CrawlView, Problem } from "facecrawl";
import { type Service, type Site, startService, startSite, TEAM, test } from "./service.js";

let service: Service;
let site: Site;
let client: Client;
/** One drawn face, which is not one of those of `TEAM`. */
let portrait: Uint8Array;
/** Number of faces in `TEAM`: ten people, some of them also as small pictures. */
let faceCount: number;
/** A finished crawl of the page that shows `TEAM`. */
let crawl: CrawlView;

before(async () => {
  service = await startService();
  client = new Client({ baseUrl: service.base });
  portrait = new Uint8Array(await (await fetch(`${service.base}/assets/examples/portrait.jpg`)).arrayBuffer());
  faceCount = (await client.detectFaces(TEAM)).faces.length;
  assert.ok(faceCount >= 10);
  const more = (number: number) => `<a href="/more/${number}">more</a>`;
  site = await startSite({
    "/": '<img src="/team.png" alt="ten people"><a href="/about">about</a>',
    "/about": "<p>nothing to see</p>",
    "/team.png": TEAM,
    "/portrait": '<img src="/portrait.jpg">',
    "/portrait.jpg": portrait,
    ...Object.fromEntries(Array.from({ length: 500 }, (_, number) => [`/more/${number}`, more(number + 1)])),
  });
});
after(async () => {
  await site?.close();
  await service?.stop();
});

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

test("the service is live and ready", async () => {
  assert.equal((await client.healthLive()).version, "0.1.0");
  assert.equal((await client.healthReady()).status, "ready");
  assert.match(await client.getMetrics(), /^# HELP /m);
});

test("the faces of an image are found, however it is sent", async () => {
  const base64 = TEAM.toString("base64");
  for (const image of [TEAM, new Blob([new Uint8Array(TEAM)]), `${site.base}/team.png`, `data:image/png;base64,${base64}`, { image_base64: base64 }]) {
    const found = await client.detectFaces(image, { embeddings: false, quality_profile: "off" });
    assert.equal(found.faces.length, faceCount);
    assert.equal(found.faces[0]?.embedding ?? null, null);
    assert.ok(found.image.width > 0);
  }
  const { faces } = await client.reportQuality(portrait, { quality_profile: "strict" });
  assert.equal(faces[0]?.quality?.passed, true);
});

test("several images are analysed together", async () => {
  const noImage = new TextEncoder().encode("no image");
  for (const images of [[TEAM, noImage, portrait], [TEAM, noImage, `${site.base}/portrait.jpg`]]) {
    const { results } = await client.detectFacesBatch(images, { embeddings: false });
    const counts = results.map((result) => ("problem" in result ? result.problem.code : result.faces.length));
    assert.deepEqual(counts, [faceCount, "not_an_image", 1]);
  }
});

test("two images are compared", async () => {
  assert.equal((await client.compareFaces(portrait, new Blob([new Uint8Array(portrait)]))).match, true);
  const other = await client.compareFaces(portrait, `${site.base}/team.png`, { face_b: 3, threshold: 0.99 });
  assert.equal(other.match, false);
  assert.ok(Math.abs(other.threshold - 0.99) < 1e-6);
});

test("an image is enhanced", async () => {
  const jpeg = await client.enhanceImage(portrait, { accept: "image/jpeg" });
  assert.equal(jpeg.type, "image/jpeg");
  assert.equal((await client.enhanceImage(portrait)).type, "image/png");
});

test("a problem names the field and what is allowed", async () => {
  await assert.rejects(client.listFaces({ limit: 0 }), (error) => {
    assert.ok(error instanceof Problem);
    assert.deepEqual([error.code, error.status, error.document?.field], ["bad_query", 400, "limit"]);
    assert.match(error.message, /limit/);
    assert.ok(error.document?.allowed?.length);
    assert.equal(error.requestId, error.document?.request_id);
    return true;
  });
  await assert.rejects(client.detectFaces(new TextEncoder().encode("no image")), { code: "not_an_image" });
  await assert.rejects(client.getFace("0198f1c2-7d10-7000-8000-4a6f1f6e2b01"), { code: "not_found" });
});

test("a crawl reports its progress", async () => {
  const { id } = await client.createCrawl({ seeds: [site.base], max_pages: 10 });
  const states: CrawlView[] = [];
  crawl = await client.waitForCrawl(id, { onProgress: (state) => void states.push(state) });
  assert.equal(crawl.state, "completed");
  assert.deepEqual([crawl.counts.pages.fetched, crawl.counts.images.processed, crawl.counts.faces], [2, 1, faceCount]);
  assert.equal(states.at(-1), crawl);
  // The last event of a crawl that has ended is sent at once.
  assert.deepEqual((await all(client.followCrawl(id))).map(({ event }) => event), ["done"]);
});

test("all pages of a list are returned", async () => {
  const faces = await all(client.iterateFaces({ crawl_id: crawl.id, limit: 3 }));
  assert.equal(new Set(faces.map(({ id }) => id)).size, faceCount);
  const [first] = (await client.listFaces({ crawl_id: crawl.id, limit: 1 })).faces;
  assert.equal(first?.id, faces[0]?.id);
  assert.equal(first?.sources[0]?.image_url, `${site.base}/team.png`);
  assert.equal((await client.getFaceCrop(first?.id ?? "", { kind: "chip" })).type, "image/png");
});

test("a search finds the stored faces", async () => {
  const { matches } = await client.searchFaces(TEAM, { crawl_id: crawl.id, face_index: 0, limit: 1, fresh: true });
  assert.ok((matches[0]?.similarity ?? 0) > 0.99);
  const [, ...others] = await all(client.iterateFaces({ crawl_id: crawl.id }));
  const byFace = await client.searchFaces({ face_id: others[0]?.id ?? "", threshold: -1 }, { limit: 3 });
  assert.equal(byFace.matches.length, 3);
  assert.equal(byFace.probe.kind, "face");
});

test("an export has a line for each image, as JSON and as CSV", async () => {
  const lines: CrawlExportLine[] = await all(client.exportCrawl(crawl.id, { embeddings: true }));
  assert.equal(lines.length, 1);
  const [line] = lines;
  assert.ok(line?.kind === "image");
  assert.equal(line.faces.length, faceCount);
  assert.ok((line.faces[0]?.embedding?.length ?? 0) >= 128);
  const csv = await new Response(await client.exportCrawlCsv(crawl.id)).text();
  assert.equal(csv.trim().split("\r\n").length, faceCount + 1);
});

test("a signal ends a wait, and the crawl goes on", async () => {
  const { id } = await client.createCrawl({ seeds: [`${site.base}/more/0`], max_pages: 500, max_depth: 50, delay_ms: 200 });
  const controller = new AbortController();
  const wait = client.waitForCrawl(id, { signal: controller.signal, onProgress: () => controller.abort() });
  await assert.rejects(wait, { name: "AbortError" });
  assert.equal((await client.getCrawl(id)).state, "running");
  const following = client.waitForCrawl(id);
  await client.cancelCrawl(id);
  assert.equal((await following).state, "cancelled");
});

test("alerts are followed, and continue after the last one", async () => {
  const [known] = (await client.listFaces({ crawl_id: crawl.id, passed: true, limit: 1 })).faces;
  const watchlist = await client.createWatchlist({ name: "Guests", purpose: "a test", faces: [known?.id ?? ""] });
  const alerts = client.followAlerts();
  const next = alerts.next();
  // The stream begins after the alerts that exist when it is opened.
  await new Promise((done) => setTimeout(done, 500));
  // A different file with the same people.
  site.files["/enhanced.jpg"] = new Uint8Array(await (await client.enhanceImage(TEAM, { accept: "image/jpeg" })).arrayBuffer());
  const { id } = await client.createCrawl({ seeds: [`${site.base}/enhanced.jpg`], dedupe: "off" });
  await client.waitForCrawl(id);
  const { value } = (await next) as { value: { data: { id: string; sequence: number; watchlist_id: string } } };
  assert.equal(value.data.watchlist_id, watchlist.id);
  await alerts.return(undefined);
  const again = await client.followAlerts({ after: value.data.sequence - 1 }).next();
  assert.equal(again.value?.data.id, value.data.id);
  assert.equal((await client.updateAlert(value.data.id, { state: "acknowledged" })).state, "acknowledged");
  assert.equal(await client.deleteWatchlist(watchlist.id), undefined);
});

test("people are enrolled, found and removed", async () => {
  const person = await client.createSubject({ name: "Ada Example" });
  const enrolled = await client.enrolSubjectFaces(person.id, portrait, { move: true });
  assert.equal(enrolled.subject.face_count, 1);
  const { matches } = await client.searchFaces(portrait, { group_by: "subject" });
  assert.equal(matches[0]?.subject_name, "Ada Example");
  const preview = await client.deleteSubject(person.id, { dry_run: true });
  assert.equal(preview?.subjects, 1);
  assert.equal(await client.deleteSubject(person.id, { confirm: preview?.confirm ?? "" }), undefined);
});

test("an import reports each file and the counts", async () => {
  const lines = await all(client.importSubjects(zip({ "Ben/portrait.jpg": portrait, "Eve/text.jpg": new Uint8Array([1]) }), { dry_run: true }));
  assert.deepEqual(lines.map(({ kind }) => kind), ["file", "file", "summary"]);
  await assert.rejects(client.importSubjects(new Uint8Array([1])).next(), { code: "bad_archive" });
});

test("an erasure is previewed first", async () => {
  const look = await client.createErasure(portrait, { dry_run: true });
  assert.equal(look.dry_run, true);
  const erased = await client.createErasure({ url: `${site.base}/portrait` });
  assert.ok(erased.erasure);
  const lifted = await client.liftSuppressions(erased.erasure.id);
  assert.ok("lifted" in lifted);
});

test("the settings of a collection are changed", async () => {
  const { id } = await client.createCollection({ name: "press", retention_days: 30 });
  const changed = await client.updateCollection(id, { retention_days: null, match_threshold: 0.5, dry_run: false });
  assert.ok("name" in changed && changed.retention_days === null);
  const preview = await client.deleteCollection(id, { dry_run: true });
  assert.equal(preview?.faces, 0);
  assert.equal(await client.deleteCollection(id), undefined);
});

test("the example prints the matches", async () => {
  const folder = await mkdtemp(join(tmpdir(), "fct-"));
  try {
    const image = join(folder, "portrait.png");
    await writeFile(image, TEAM);
    const program = fileURLToPath(new URL("../examples/crawl-and-search.js", import.meta.url));
    const env = { PATH: process.env.PATH, FACECRAWL_URL: service.base };
    const { stdout } = await promisify(execFile)(process.execPath, [program, site.base, image], { env });
    assert.match(stdout, /the crawl is completed/);
    assert.ok(stdout.includes(`${site.base}/team.png on ${site.base}/`), stdout);
  } finally {
    await rm(folder, { recursive: true });
  }
});

/** Returns a ZIP archive of uncompressed files. */
function zip(files: Record<string, Uint8Array>): Uint8Array {
  const local: Buffer[] = [];
  const central: Buffer[] = [];
  let offset = 0;
  for (const [name, content] of Object.entries(files)) {
    const head = Buffer.alloc(30);
    head.writeUInt32LE(0x04034b50, 0);
    head.writeUInt16LE(10, 4);
    head.writeUInt32LE(crc32(content), 14);
    head.writeUInt32LE(content.length, 18);
    head.writeUInt32LE(content.length, 22);
    head.writeUInt16LE(name.length, 26);
    const entry = Buffer.alloc(46);
    entry.writeUInt32LE(0x02014b50, 0);
    entry.writeUInt16LE(10, 4);
    head.copy(entry, 6, 4, 30);
    entry.writeUInt32LE(offset, 42);
    local.push(head, Buffer.from(name), Buffer.from(content));
    central.push(entry, Buffer.from(name));
    offset += head.length + name.length + content.length;
  }
  const directory = Buffer.concat(central);
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(Object.keys(files).length, 8);
  end.writeUInt16LE(Object.keys(files).length, 10);
  end.writeUInt32LE(directory.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...local, directory, end]);
}

function crc32(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return (crc ^ 0xffffffff) >>> 0;
}
