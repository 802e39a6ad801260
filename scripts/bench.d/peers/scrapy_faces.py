"""Crawls one host with Scrapy and stores the faces of its images in SQLite: `scrapy_faces.py URL
DATABASE ANALYSER MODEL...`. ANALYSER is a function of analysers.py, which detects and embeds. Each
image is handed to a pool of two threads. Each thread has its own models and one thread inside them,
which is faster on two cores than one image at a time with all cores.
"""
import asyncio
import hashlib
import json
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy
import scrapy
from scrapy.crawler import CrawlerProcess

import analysers
from scrapy_spider import SETTINGS, Everything

THREADS = 2


class Database:
    """Stores images and faces, with one commit per image."""

    def __init__(self, path):
        self.lock = threading.Lock()
        self.connection = sqlite3.connect(path, check_same_thread=False)
        self.connection.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = NORMAL;
            CREATE TABLE image (id INTEGER PRIMARY KEY, url TEXT UNIQUE, sha256 BLOB, width INTEGER, height INTEGER);
            CREATE TABLE face (image INTEGER REFERENCES image, box BLOB, embedding BLOB);
            """
        )

    def store(self, url, data, image, faces):
        rows = [(numpy.float32(box).tobytes(), numpy.float32(embedding).tobytes()) for box, embedding in faces]
        digest = hashlib.sha256(data).digest()
        with self.lock, self.connection:
            insert = "INSERT INTO image (url, sha256, width, height) VALUES (?, ?, ?, ?)"
            number = self.connection.execute(insert, (url, digest, image.shape[1], image.shape[0])).lastrowid
            self.connection.executemany("INSERT INTO face VALUES (?, ?, ?)", [(number, *row) for row in rows])


class Workers:
    """Two threads that decode, analyse and store. The constructor returns after both have loaded
    their models."""

    def __init__(self, database, make):
        self.database, self.make, self.models = database, make, threading.local()
        self.cpu_seconds, self.failures = 0.0, []
        loaded = threading.Barrier(THREADS + 1)
        self.pool = ThreadPoolExecutor(THREADS, initializer=self.load, initargs=(loaded,))
        for _ in range(THREADS):
            self.pool.submit(int)
        loaded.wait()

    def load(self, loaded):
        self.models.analyse = self.make()
        self.models.analyse(numpy.zeros((480, 640, 3), numpy.uint8))
        loaded.wait()

    def work(self, url, data):
        began = time.thread_time()
        try:
            image = analysers.decode(data)
            self.database.store(url, data, image, self.models.analyse(image))
        except Exception as error:  # One damaged file must not end the crawl.
            self.failures.append(f"{url}: {error!r}")
        self.cpu_seconds += time.thread_time() - began


class Faces(Everything):
    def __init__(self, url, workers):
        super().__init__(url)
        self.workers = workers

    def found(self, images):
        for image in images:
            yield scrapy.Request(image, self.image)

    async def image(self, response):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.workers.pool, self.workers.work, response.url, response.body)


def main():
    url, path, analyser, *models = sys.argv[1:]
    cv2.setNumThreads(1)
    database = Database(path)
    make = getattr(analysers, analyser)
    workers = Workers(database, lambda: make(*models, threads=1))
    process = CrawlerProcess(SETTINGS)
    process.crawl(Faces, url=url, workers=workers)
    started = time.perf_counter()
    process.start()
    seconds = time.perf_counter() - started
    pictures, faces = (database.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("image", "face"))
    done = {"pictures": pictures, "faces": faces, "seconds": round(seconds, 3), "pool_cpu_seconds": round(workers.cpu_seconds, 2)}
    print(json.dumps(done | {"failed": len(workers.failures), "failures": workers.failures[:5]}))


if __name__ == "__main__":
    main()
