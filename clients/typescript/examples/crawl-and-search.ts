// Crawls a site, and searches its images for the faces of one image.
//
//     node crawl-and-search.js https://example.org/ portrait.jpg
import { openAsBlob } from "node:fs";
import { Client, Problem } from "facecrawl";

const [site, portrait] = process.argv.slice(2);
if (!site || !portrait) throw new Error("arguments: address of a site, path of an image");
const client = new Client({ baseUrl: process.env.FACECRAWL_URL, key: process.env.FACECRAWL_KEY });

const { id } = await client.createCrawl({ seeds: [site], max_pages: 100 });
const crawl = await client.waitForCrawl(id, {
  onProgress: ({ counts }) => console.log(`${counts.pages.fetched} pages, ${counts.faces} faces`),
});
console.log(`the crawl is ${crawl.state}`);

try {
  const image = await openAsBlob(portrait);
  const { matches } = await client.searchFaces(image, { crawl_id: id, fresh: true });
  for (const { similarity, sources } of matches) {
    console.log(similarity.toFixed(3), sources[0]?.image_url, "on", sources[0]?.page_url);
  }
} catch (error) {
  if (!(error instanceof Problem) || error.code !== "no_face") throw error;
  console.log(`${portrait} contains no face`);
}
