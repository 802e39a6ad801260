"""Pages and images per second: Scrapy's ImagesPipeline, our crawler alone, and the whole service, on one local site.

The site is served by code of ours (`bench_site`), its pictures are drawn at the start. Every round crawls it with each of:
  scrapy     Scrapy with ImagesPipeline: pages, links, images to files; robots.txt obeyed, delay 0, 32 requests at a time
  crawler    the `download` example of the crawler: the same work, also 32 at a time, through the URL guard
  facecrawl  `facecrawl scan`: that, and hashes, face detection and a database row for every image
The report is the median of the rounds as JSON; `speedup` is images per second over Scrapy's.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".runtime/bench/bin/python"
PACKAGES = ["scrapy==2.19.0", "pillow==13.0.0"]


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def rivals():
    """The virtual environment with what is measured against."""
    marker = PYTHON.parent.parent / ".complete"
    if marker.exists() and marker.read_text() == " ".join(PACKAGES):
        return
    say(f"installing {' '.join(PACKAGES)} into .runtime/bench")
    subprocess.run([sys.executable, "-m", "venv", PYTHON.parent.parent], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    marker.write_text(" ".join(PACKAGES))


def binaries():
    """Release builds of the service, the site and the crawler alone."""
    build = ["cargo", "build", "--release", "--locked", "--quiet"]
    say("building (the first build takes some minutes)")
    subprocess.run([*build, "-p", "facecrawl"], check=True, cwd=ROOT)
    subprocess.run([*build, "-p", "facecrawl-testing", "--example", "bench_site"], check=True, cwd=ROOT)
    subprocess.run([*build, "-p", "facecrawl-crawler", "--example", "download"], check=True, cwd=ROOT)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"


def last_json(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"bench: {command[0]} failed with {done.returncode}:\n{done.stdout}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def scrapy(url, folder):
    spider = ROOT / "scripts/bench.d/scrapy_spider.py"
    return last_json([PYTHON, spider, url, folder])


def crawler(url, folder, release):
    return last_json([release / "examples/download", url, folder])


def facecrawl(url, folder, release, pages, images):
    environment = dict(os.environ, FACECRAWL_ROOT=str(ROOT), CRAWL_ALLOW_PRIVATE="127.0.0.0/8", CRAWL_DELAY_MS="0")
    limits = ["--max-pages", str(pages + 1), "--max-images", str(images)]
    scan = [release / "facecrawl", "--data-dir", folder, "scan", url, "--json", "--dedupe", "exact", *limits]
    answer = last_json(scan, env=environment)
    done = answer["images"]["processed"] + answer["images"]["duplicate"]
    return {"pages": sum(answer["pages"].values()), "images": done, "seconds": answer["seconds"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--images", type=int, default=10, help="on each page")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rivals()
    release = binaries()
    total = arguments.pages * arguments.images
    site = subprocess.Popen(
        [release / "examples/bench_site", str(arguments.pages), str(arguments.images)], stdout=subprocess.PIPE, text=True
    )
    rounds = {"scrapy": [], "crawler": [], "facecrawl": []}
    try:
        url = site.stdout.readline().strip()
        say(f"{arguments.pages} pages with {total} images at {url}")
        for number in range(arguments.rounds):
            for name, samples in rounds.items():
                folder = pathlib.Path(tempfile.mkdtemp(prefix="facecrawl-bench-"))
                try:
                    if name == "scrapy":
                        result = scrapy(url, folder)
                    elif name == "crawler":
                        result = crawler(url, folder, release)
                    else:
                        result = facecrawl(url, folder, release, arguments.pages, total)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                if result["images"] != total:
                    sys.exit(f"bench: {name} found {result['images']} of {total} images: {result}")
                samples.append(result)
                say(f"round {number + 1}, {name}: {result['seconds']:.2f} s")
    finally:
        site.terminate()
        site.wait()
    report = {}
    for name, samples in rounds.items():
        seconds = statistics.median(sample["seconds"] for sample in samples)
        report[name] = {
            "seconds": round(seconds, 3),
            "pages_per_second": round(samples[0]["pages"] / seconds, 1),
            "images_per_second": round(total / seconds, 1),
        }
    base = report["scrapy"]["images_per_second"]
    for name in ("crawler", "facecrawl"):
        report[name]["speedup"] = round(report[name]["images_per_second"] / base, 2)
    print(json.dumps({"operation": "crawl", "pages": arguments.pages, "images": total, "results": report}, indent=2))


if __name__ == "__main__":
    started = time.monotonic()
    main()
    say(f"took {time.monotonic() - started:.0f} s")
