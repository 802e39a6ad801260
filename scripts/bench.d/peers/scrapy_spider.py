"""Crawls one host with Scrapy and its ImagesPipeline: `scrapy_spider.py URL FOLDER`. `bench crawl`
runs this program in a virtual environment."""
import json
import sys
import time
from urllib.parse import urlparse

import scrapy
from scrapy.crawler import CrawlerProcess


SETTINGS = {
    "ROBOTSTXT_OBEY": True,
    "DOWNLOAD_DELAY": 0,
    "RANDOMIZE_DOWNLOAD_DELAY": False,
    "CONCURRENT_REQUESTS": 32,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
    "TELNETCONSOLE_ENABLED": False,
    "LOG_LEVEL": "ERROR",
}


class Everything(scrapy.Spider):
    name = "everything"

    def __init__(self, url):
        super().__init__()
        self.start_urls = [url]
        self.host = urlparse(url).netloc
        self.pages = 0

    def parse(self, response):
        self.pages += 1
        images = [response.urljoin(src) for src in response.css("img::attr(src)").getall()]
        if images:
            yield from self.found(images)
        for link in response.css("a::attr(href)").getall():
            target = response.urljoin(link)
            if urlparse(target).netloc == self.host:
                yield response.follow(link, self.parse)

    def found(self, images):
        """Yields what Scrapy shall do with the images of a page."""
        yield {"image_urls": images}


def main():
    url, folder = sys.argv[1:3]
    pipeline = {"IMAGES_STORE": folder, "ITEM_PIPELINES": {"scrapy.pipelines.images.ImagesPipeline": 1}}
    process = CrawlerProcess(SETTINGS | pipeline)
    crawler = process.create_crawler(Everything)
    started = time.perf_counter()
    process.crawl(crawler, url=url)
    process.start()
    seconds = time.perf_counter() - started
    images = crawler.stats.get_value("file_count", 0)
    print(json.dumps({"pages": crawler.spider.pages, "images": images, "seconds": round(seconds, 3)}))


if __name__ == "__main__":
    main()
