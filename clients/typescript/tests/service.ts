// Starts the real service on an empty data folder, and small HTTP servers on loopback.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync } from "node:fs";
import { chmod, mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { test as withoutLimit, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";

const PACKAGE = resolve(fileURLToPath(import.meta.url), "../../..");
const ROOT = resolve(PACKAGE, "../..");
/** Variables that the service inherits from this process. */
const INHERITED = ["PATH", "HOME", "LANG", "TMPDIR", "ORT_DYLIB_PATH", "POSTGRES_BIN_DIR", "FACE_MODEL_MIRROR", "MODELS_DIR", "FFMPEG"];

/** Defines a test that fails after a minute. */
export function test(name: string, run: (context: TestContext) => void | Promise<void>): void {
  void withoutLimit(name, { timeout: 60_000 }, run);
}

/** Ten drawn people. */
export const TEAM = await readFile(join(ROOT, "docs/screenshots/detect.png"));

export interface Service {
  base: string;
  stop(): Promise<void>;
}

/** Starts the service without the settings of the user. It may fetch only from loopback. */
export async function startService(): Promise<Service> {
  const binary = process.env.FACECRAWL_BINARY ?? join(ROOT, "target/debug/facecrawl");
  // The name is short, because the length of the path of a Unix socket is limited. Postgres runs as
  // a different user if this one is root.
  const folder = await mkdtemp(join(tmpdir(), "fct-"));
  await chmod(folder, 0o755);
  const environment: NodeJS.ProcessEnv = {
    ...checkout(),
    ...Object.fromEntries(INHERITED.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name]]]))),
    DATA_DIR: join(folder, "data"),
    PORT: "0",
    WORKERS: "2",
    LOG_LEVEL: "warn",
    CRAWL_ALLOW_PRIVATE: "127.0.0.0/8",
    CRAWL_PORTS: "9",
    CRAWL_DELAY_MS: "0",
  };
  const child = spawn(binary, ["up"], { cwd: folder, env: environment, stdio: ["ignore", "ignore", "pipe"] });
  process.once("exit", () => child.kill("SIGTERM"));
  const exited = once(child, "exit");
  const log: string[] = [];
  const ready = new Promise<string>((resolve, reject) => {
    child.once("error", reject);
    createInterface(child.stderr)
      .on("line", (line) => {
        log.push(line);
        const found = /facecrawl is ready on (http:\/\/\S+)/.exec(line);
        if (found?.[1]) resolve(found[1]);
      })
      .once("close", () => reject(new Error(`the service exited:\n${log.join("\n")}`)));
  });
  const stop = async () => {
    child.kill("SIGTERM");
    await exited;
    await rm(folder, { recursive: true, force: true });
  };
  try {
    return { base: await ready, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/**
 * Returns the paths in this checkout that the service needs. `FACECRAWL_ROOT` is not set, because
 * the service would then read `.env`, which may contain the address of a database in use.
 */
function checkout(): Record<string, string> {
  const libraries = join(ROOT, ".runtime/onnxruntime");
  const library = existsSync(libraries) ? readdirSync(libraries).find((name) => /^libonnxruntime\.(so|dylib)$/.test(name)) : undefined;
  const places: Record<string, string | undefined> = {
    MODELS_DIR: join(ROOT, "models"),
    FACE_MODEL_MIRROR: join(ROOT, "../shared/models"),
    POSTGRES_BIN_DIR: join(ROOT, ".runtime/postgres/bin"),
    ORT_DYLIB_PATH: library && join(libraries, library),
    FFMPEG: join(ROOT, ".runtime/ffmpeg/ffmpeg"),
  };
  const found = Object.entries(places).filter(([name, place]) => place && (name === "MODELS_DIR" || existsSync(place)));
  return Object.fromEntries(found) as Record<string, string>;
}

export interface Server {
  base: string;
  close(): Promise<void>;
}

export interface Site extends Server {
  /** The pages and images by path. */
  files: Record<string, string | Uint8Array>;
}

/** Starts an HTTP server on loopback. */
export async function startServer(listener: RequestListener): Promise<Server> {
  const server = createServer(listener);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    base: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

/** Starts a site with the given pages and images. */
export async function startSite(files: Site["files"]): Promise<Site> {
  const server = await startServer((request, response) => {
    const path = request.url ?? "";
    const file = files[path];
    const image = path.endsWith(".png") ? "image/png" : "image/jpeg";
    response.writeHead(file === undefined ? 404 : 200, { "content-type": typeof file === "object" ? image : "text/html" });
    response.end(file ?? "nothing");
  });
  return { ...server, files };
}
