// Compares the client with the OpenAPI document of the running service.
import assert from "node:assert/strict";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Client, ConnectionError } from "facecrawl";
import ts from "typescript";
import { type Document, methodOf, type Operation, operationsOf, sample, valuesOf } from "./document.js";
import { type Service, startService, test } from "./service.js";

const PACKAGE = fileURLToPath(new URL("../..", import.meta.url));
const FOLDER = join(PACKAGE, "dist/tests/written");
const JSON_TYPE = "application/json";
const LINES_TYPE = "application/x-ndjson";

let service: Service;
let document: Document;
let operations: Operation[];

before(async () => {
  service = await startService();
  document = (await new Client({ baseUrl: service.base }).getOpenapi()) as unknown as Document;
  operations = operationsOf(document);
  await mkdir(FOLDER, { recursive: true });
});
after(() => service?.stop());

/** Returns the arguments of the body as source text, and the JSON that the client must send. */
function bodyOf({ requestBody }: Operation): { source: string[]; json?: unknown } {
  const content = requestBody?.content ?? {};
  const media = content[JSON_TYPE];
  if (!media) return { source: requestBody ? ["new Uint8Array([1])"] : [] };
  const json = sample(document, media.schema);
  const isInput = Object.keys(content).length > 1;
  if (!isInput) return { source: [], json };
  // The arguments of operations with several images are those images.
  const isSingle = "image/*" in content || "video/*" in content;
  return { source: (isSingle ? [json] : Object.values(json as object)).map((value) => JSON.stringify(value)), json };
}

function isCsv(operation: Operation): boolean {
  return "text/csv" in (operation.responses["200"]?.content ?? {});
}

/** Returns a call with all parameters as source text. */
function callOf(operation: Operation): string {
  const query = valuesOf(document, operation, "query");
  // The method chooses the format.
  if (isCsv(operation)) delete query.format;
  const body = bodyOf(operation);
  const json = body.source.length === 0 ? body.json : undefined;
  const parameters = { ...query, ...valuesOf(document, operation, "header"), ...(json as object | undefined) };
  const ids = Object.values(valuesOf(document, operation, "path")).map((id) => JSON.stringify(id));
  const last = Object.keys(parameters).length > 0 ? [JSON.stringify(parameters)] : [];
  return `client.${methodOf(operation)}(${[...ids, ...body.source, ...last].join(", ")})`;
}

/** Compiles a source text and returns the path of the result. */
async function compile(name: string, text: string, options: ts.CompilerOptions = {}): Promise<string> {
  const path = join(FOLDER, `${name}.ts`);
  await writeFile(path, text);
  const program = ts.createProgram([path], {
    strict: true,
    exactOptionalPropertyTypes: true,
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.NodeNext,
    types: ["node"],
    ...options,
  });
  const found = [...ts.getPreEmitDiagnostics(program), ...program.emit().diagnostics];
  const host = { getCurrentDirectory: () => PACKAGE, getCanonicalFileName: (file: string) => file, getNewLine: () => "\n" };
  assert.equal(ts.formatDiagnostics(found, host), "");
  return path.replace(/ts$/, "js");
}

test("every operation has a method that sends all parameters", async () => {
  assert.ok(operations.length >= 88, `${operations.length} operations`);
  const calls = operations.map((operation) => `  ${operation.operationId}: (client) => ${callOf(operation)},\n`);
  const type = "Record<string, (client: Client) => unknown>";
  const path = await compile("calls", `import type { Client } from "facecrawl";\nexport const calls: ${type} = {\n${calls.join("")}};\n`);
  const written = (await import(pathToFileURL(path).href)) as { calls: Record<string, (client: Client) => unknown> };

  for (const operation of operations) {
    const sent: { url: URL; init: RequestInit }[] = [];
    const client = new Client({
      maxRetries: 0,
      fetch: async (url, init = {}) => {
        sent.push({ url: new URL(String(url)), init });
        throw new TypeError("nothing is sent");
      },
    });
    const result = written.calls[operation.operationId]?.(client);
    const first = Symbol.asyncIterator in Object(result) ? (result as AsyncGenerator).next() : (result as Promise<unknown>);
    await assert.rejects(first, ConnectionError);
    assert.equal(sent.length, 1, operation.operationId);
    const { url, init } = sent[0]!;
    const query = valuesOf(document, operation, "query");
    if (isCsv(operation)) query.format = "jsonl";
    const path = operation.path.replace(/\{(\w+)\}/g, (_, name: string) => String(valuesOf(document, operation, "path")[name]));
    assert.equal(`${init.method} ${url.pathname}`, `${operation.method} ${path}`);
    const expected = Object.entries(query).map(([name, value]) => [name, String(value)]);
    assert.deepEqual(Object.fromEntries(url.searchParams), Object.fromEntries(expected), operation.operationId);
    const headers = new Headers(init.headers);
    for (const [name, value] of Object.entries(valuesOf(document, operation, "header"))) assert.equal(headers.get(name), value);
    const { json } = bodyOf(operation);
    if (json !== undefined) {
      assert.equal(headers.get("content-type"), JSON_TYPE, operation.operationId);
      assert.deepEqual(JSON.parse(String(init.body)), json, operation.operationId);
    } else {
      assert.equal(init.body !== undefined, operation.requestBody !== undefined, operation.operationId);
    }
  }
});

test("every method belongs to an operation", () => {
  const names = new Set<string>();
  for (const operation of operations) {
    const name = methodOf(operation);
    names.add(name);
    if (isCsv(operation)) names.add(`${name}Csv`);
    if ("cursor" in valuesOf(document, operation, "query")) names.add(name.replace(/^list/, "iterate"));
  }
  const base = Object.getPrototypeOf(Client.prototype) as object;
  const methods = Object.getOwnPropertyNames(base).filter((name) => name !== "constructor");
  assert.deepEqual(methods.sort(), [...names].sort());
});

test("the types match the examples of the document", async () => {
  let text = 'import type { Client } from "facecrawl";\n';
  text += "type Item<T> = T extends AsyncGenerator<infer V> ? V : T extends Promise<infer V> ? V : never;\n";
  text += "type Result<M extends keyof Client> = Client[M] extends (...values: never[]) => infer R ? Item<R> : never;\n";
  let results = 0;
  for (const operation of operations) {
    for (const [status, response] of Object.entries(operation.responses)) {
      if (!status.startsWith("2")) continue;
      const name = `${operation.operationId}_${status}`;
      const json = response.content?.[JSON_TYPE]?.example;
      const lines = response.content?.[LINES_TYPE]?.example;
      const examples = typeof lines === "string" ? lines.trim().split("\n").map((line) => JSON.parse(line) as unknown) : json === undefined ? [] : [json];
      for (const example of examples) {
        text += `export const ${name}_${(results += 1)}: Result<"${methodOf(operation)}"> = ${JSON.stringify(example)};\n`;
      }
    }
    const example = operation.requestBody?.content[JSON_TYPE]?.example;
    const isObject = operation.requestBody && Object.keys(operation.requestBody.content).length === 1;
    if (example !== undefined && isObject) {
      const ids = Object.keys(valuesOf(document, operation, "path")).map(() => '"id"');
      const call = `client.${methodOf(operation)}(${[...ids, JSON.stringify(example)].join(", ")})`;
      text += `export const ${operation.operationId}_call = (client: Client) => ${call};\n`;
    }
  }
  assert.ok(results > 70, `${results} examples`);
  await compile("examples", text);
});

test("wrong names and values are errors of the compiler", async () => {
  const wrong = [
    'client.listFaces({ limt: 1 })',
    'client.listFaces({ limit: "1" })',
    'client.detectFaces("https://example.org/a.jpg", { rotate: "yes" })',
    'client.detectFaces(1)',
    'client.createErasure("https://example.org/portrait.jpg")',
    'client.createCrawl({})',
    'client.getFace()',
  ];
  const lines = wrong.map((call) => `// @ts-expect-error\n${call};\n`);
  await compile("wrong", `import type { Client } from "facecrawl";\ndeclare const client: Client;\n${lines.join("")}`);
});

test("the types need neither those of Node nor those of browsers", async () => {
  const text = 'import { Client } from "facecrawl";\nexport const client: Client = new Client();\n';
  await compile("node", text, { lib: ["lib.es2022.d.ts"], types: ["node"] });
  await compile("browser", text, { lib: ["lib.es2022.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts"], types: [] });
});

test("the version is that of the service", async () => {
  const { version } = JSON.parse(await readFile(join(PACKAGE, "package.json"), "utf8")) as { version: string };
  assert.equal(version, document.info.version);
});
