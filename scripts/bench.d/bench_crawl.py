"""Measures pages and images per second of Scrapy's ImagesPipeline, of the crawler alone, and of the
whole service, on one local site.

The example `bench_site` serves the site; its images are drawn at the start. Every round crawls the
site with each of:
  scrapy     Scrapy with ImagesPipeline: pages, links, images to files; robots.txt is obeyed,
             delay 0, 32 simultaneous requests
  crawler    the example `download` of the crawler: the same work, also 32 requests, through the
             URL guard
  facecrawl  `facecrawl scan`: the same, and hashes, face detection and a database row per image
The report contains medians over the rounds, and the median of the ratios to Scrapy within each
round.
"""
import argparse
import json
import subprocess
import sys
import tempfile

from _build import environment, release as build_release, say
from _rivals import PEERS, python
from _run import last_json, medians, ratios, rounds

PACKAGES = ["scrapy==2.19.0", "pillow==13.0.0"]


def scrapy(url, folder, peer):
    return last_json([peer, PEERS / "scrapy_spider.py", url, folder])


def crawler(url, folder, release):
    return last_json([release / "examples/download", url, folder])


def facecrawl(url, folder, release, pages, images):
    limits = ["--max-pages", str(pages + 1), "--max-images", str(images)]
    scan = [release / "facecrawl", "--data-dir", folder, "scan", url, "--json", "--dedupe", "exact", *limits]
    answer = last_json(scan, env=environment(CRAWL_ALLOW_PRIVATE="127.0.0.0/8", CRAWL_DELAY_MS="0"))
    done = answer["images"]["processed"] + answer["images"]["duplicate"]
    return {"pages": sum(answer["pages"].values()), "images": done, "seconds": answer["seconds"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--images", type=int, default=10, help="number of images on each page")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    peer = python("crawl", PACKAGES)
    release = build_release()
    total = arguments.pages * arguments.images
    site = subprocess.Popen(
        [release / "examples/bench_site", str(arguments.pages), str(arguments.images)], stdout=subprocess.PIPE, text=True
    )
    try:
        url = site.stdout.readline().strip()
        say(f"{arguments.pages} pages with {total} images at {url}")

        def contestant(crawl):
            def run():
                with tempfile.TemporaryDirectory(prefix="facecrawl-bench-", ignore_cleanup_errors=True) as folder:
                    result = crawl(folder)
                if result["images"] != total:
                    sys.exit(f"bench: found {result['images']} of {total} images: {result}")
                return {**result, "images_per_second": total / result["seconds"], "pages_per_second": result["pages"] / result["seconds"]}

            return run

        contestants = {
            "scrapy": contestant(lambda folder: scrapy(url, folder, peer)),
            "crawler": contestant(lambda folder: crawler(url, folder, release)),
            "facecrawl": contestant(lambda folder: facecrawl(url, folder, release, arguments.pages, total)),
        }
        results = rounds(contestants, arguments.rounds)
    finally:
        site.terminate()
        site.wait()
    report = {
        "operation": "crawl",
        "pages": arguments.pages,
        "images": total,
        "medians": medians(results, ["seconds", "pages_per_second", "images_per_second"]),
        "ratios": {f"{name} / scrapy": ratios(results, "images_per_second", name, "scrapy") for name in ("crawler", "facecrawl")},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
