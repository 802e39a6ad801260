"""Crawls a site and searches it for a person, with a private service that ends with this script.

    python crawl_and_search.py https://example.org/ portrait.jpg [SETTING=VALUE...]
"""
import sys

import facecrawl

site, portrait, *settings = sys.argv[1:]
with facecrawl.local(settings=dict(one.split("=", 1) for one in settings)) as client:
    crawl = client.crawl(seeds=[site], max_pages=100, on_progress=lambda crawl: print(crawl["counts"]))
    print(crawl["state"], crawl["counts"]["faces"], "faces")
    for match in client.search_faces(portrait, limit=10)["matches"]:
        print(f"{match['similarity']:.2f}", match["sources"][0]["image_url"])
