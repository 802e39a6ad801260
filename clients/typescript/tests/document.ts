// The OpenAPI document, and values that it allows.

export interface Schema {
  $ref?: string;
  type?: string | string[];
  format?: string;
  enum?: unknown[];
  oneOf?: Schema[];
  minimum?: number;
  items?: Schema;
  required?: string[];
  properties?: Record<string, Schema>;
}

interface Media {
  schema: Schema;
  example?: unknown;
}

export interface Operation {
  operationId: string;
  method: string;
  path: string;
  parameters?: { name: string; in: "path" | "query" | "header"; schema: Schema }[];
  requestBody?: { content: Record<string, Media> };
  responses: Record<string, { content?: Record<string, Media> }>;
}

export interface Document {
  info: { version: string };
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema> };
}

export function operationsOf(document: Document): Operation[] {
  return Object.entries(document.paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) => ({ ...operation, path, method: method.toUpperCase() })),
  );
}

/** Returns the name of the method of an operation. */
export function methodOf({ operationId }: Operation): string {
  return operationId.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}

/** Returns the parameters of an operation in a place, with a value for each. */
export function valuesOf(document: Document, { parameters = [] }: Operation, place: string): Record<string, unknown> {
  const found = parameters.filter((parameter) => parameter.in === place);
  return Object.fromEntries(found.map(({ name, schema }) => [name, sample(document, schema)]));
}

/** Returns a value with all fields of a schema. Only fields that must be null are missing. */
export function sample(document: Document, schema: Schema): unknown {
  if (schema.$ref) {
    const target = document.components.schemas[schema.$ref.split("/").at(-1) ?? ""];
    if (!target) throw new Error(`${schema.$ref} does not exist`);
    return sample(document, target);
  }
  if (schema.enum) return schema.enum[0];
  if (schema.oneOf?.[0]) return sample(document, schema.oneOf[0]);
  const type = Array.isArray(schema.type) ? schema.type.find((name) => name !== "null") : schema.type;
  if (type === "boolean") return true;
  if (type === "integer" || type === "number") return schema.minimum ?? 1;
  if (type === "array") return [sample(document, schema.items ?? {})];
  if (type === "object") {
    const fields = Object.entries(schema.properties ?? {}).filter(([, field]) => field.type !== "null");
    return Object.fromEntries(fields.map(([name, field]) => [name, sample(document, field)]));
  }
  if (type !== "string") throw new Error(`unknown schema ${JSON.stringify(schema)}`);
  const formats: Record<string, string> = {
    uuid: "0198f1c2-7d10-7000-8000-4a6f1f6e2b01",
    "date-time": "2026-01-31T12:00:00Z",
    uri: "https://example.org/portrait.jpg",
  };
  return formats[schema.format ?? ""] ?? "text";
}
