#!/usr/bin/env python3
"""Puts elements into a bounded queue in Redis and gets them, by Lockkeeper's scripts.

    REDIS_URL=... pressure_client.py [--timeout SECONDS] create|put|get|close|length QUEUE

put: each line of standard input. get: to standard output, until the queue is closed.
To read, to copy from and to import: what docs/protocols/pressure.md ("Call contract")
requires, with redis-py and the files in SCRIPTS. Each operation happens completely or not
at all, and a client that is killed leaves nothing to repair. Exits with 69: no server,
75: timeout, 81: no such queue, 82: it exists already, 83: closed.
"""
import argparse, functools, hashlib, os, pathlib, socket, sys, threading, time

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = pathlib.Path(os.environ.get("PRESSURE_SCRIPTS", HERE / "../../crates/pressure/src/scripts"))
SUFFIXES = ("bound producer consumer producer_free consumer_free stats:produced_messages "
            "stats:produced_bytes stats:consumed_messages stats:consumed_bytes not_full closed "
            "in_flight leases").split()
BATCH, BATCH_BYTES = 500, 1_000_000  # a get may not end in time on a slow network otherwise
EXIT_CODES = {"closed": 83, "absent": 81, "already": 82, "residue": 82}

class QueueError(Exception):
    """Why the queue does not permit it: absent, already (exists or closed), residue (of a
    deletion), closed, or after the timeout: full, empty, busy (another client's role)."""

    def __init__(self, why, detail=None):
        super().__init__(why, detail)
        self.why = why

def connect(url):
    # Not repeated: a put that was sent and not answered may have happened.
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_keepalive=True)

@functools.cache
def script_text(script):
    return "\n".join((SCRIPTS / f"{part}.lua").read_text() for part in ("shared", script))

class QueueBase:
    """The keys of a queue, and its iteration."""

    def __init__(self, server, name, prefix="__pressure__"):
        self.server = server
        self.data = f"{prefix}:{name}"
        self.id = f"{socket.gethostname()}/{os.getpid()}/{threading.get_ident()}"

    def key(self, suffix):
        return f"{self.data}:{suffix}"

    def __iter__(self):
        try:
            while True:
                yield from self.get()
        except QueueError as error:
            if error.why != "closed":
                raise

class Queue(QueueBase):
    def run(self, script, *arguments):
        text = script_text(script)
        keys = [self.data] + [self.key(suffix) for suffix in SUFFIXES]
        try:
            sha = hashlib.sha1(text.encode()).hexdigest()
            reply = self.server.evalsha(sha, len(keys), *keys, *arguments)
        except NoScriptError:  # nothing has happened yet
            reply = self.server.eval(text, len(keys), *keys, *arguments)
        return reply[0].decode(), reply[1:]

    def ask(self, wanted, script, *arguments, waits={}, timeout=float("inf")):
        """Runs a script until it answers as wanted. For other answers, `waits` has the list
        to wait for: until it has an element, which stays there. A close or deletion is
        noticed within a second, by the next run."""
        until = time.monotonic() + timeout
        while True:
            answer, detail = self.run(script, *arguments)
            left = until - time.monotonic()
            if answer == wanted:
                return detail
            if answer not in waits or left <= 0:
                raise QueueError(answer, detail)
            key = waits[answer]
            self.server.blmove(key, key, max(0.01, min(1, left)), "RIGHT", "RIGHT")

    def create(self, bound=0):
        self.ask("done", "create", bound)

    def put(self, *elements, timeout=float("inf")):
        """In this order. After an error, those that were put are put."""
        waits = {"full": self.key("not_full"), "busy": self.key("producer_free")}
        left = list(elements)
        while left:
            arguments = (self.id, "room", "none", *left[:BATCH])
            del left[:self.ask("put", "put", *arguments, waits=waits, timeout=timeout)[0]]

    def get(self, most=1, timeout=float("inf")):
        """At least one element, the oldest first. They are stored nowhere else."""
        waits = {"empty": self.data, "busy": self.key("consumer_free")}
        arguments = (self.id, min(most, BATCH), BATCH_BYTES)
        self.read, _, *elements = self.ask("got", "get", *arguments, waits=waits, timeout=timeout)
        return elements

    def give_back(self, elements):
        """The last ones of the last get, unless a client has got elements since."""
        self.ask("done", "giveback", self.id, self.read, *elements)

    def close(self, timeout=float("inf")):
        waits = {"busy": self.key("producer_free")}
        self.ask("done", "close", self.id, waits=waits, timeout=timeout)

    def __len__(self):
        return self.ask("there", "look", 0)[0]

def main(kind):
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=float("inf"))
    parser.add_argument("--bound", type=int, default=0)
    parser.add_argument("operation", choices=["create", "put", "get", "close", "length"])
    parser.add_argument("queue")
    given = parser.parse_args()
    prefix = os.environ.get("PRESSURE_PREFIX", "__pressure__")
    queue = kind(connect(os.environ.get("REDIS_URL", "redis://127.0.0.1")), given.queue, prefix)
    try:
        if given.operation == "put":
            for line in sys.stdin.buffer:
                queue.put(line.rstrip(b"\n"), timeout=given.timeout)
        while given.operation == "get":
            sys.stdout.buffer.write(b"".join(each + b"\n" for each in queue.get(1, given.timeout)))
            sys.stdout.flush()
        if given.operation == "create":
            queue.create(given.bound)
        if given.operation == "close":
            queue.close(given.timeout)
        if given.operation == "length":
            print(len(queue))
    except QueueError as error:
        if error.why == "closed" and given.operation == "get":
            sys.exit(0)
        print(f"queue {given.queue}: {error.why}", file=sys.stderr)
        sys.exit(EXIT_CODES.get(error.why, 75))
    except RedisError as error:
        changed = "" if given.operation == "length" else "the last operation may have happened: "
        print(f"{changed}{error}", file=sys.stderr)
        sys.exit(69)

if __name__ == "__main__":
    main(Queue)
