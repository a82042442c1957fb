#!/usr/bin/env python3
"""Puts elements into a bounded queue in Redis and gets them, command by command.

    REDIS_URL=... pressure_plain_client.py [--timeout SECONDS] create|put|get|close|length QUEUE

To read and to copy from: the operations of pressure 0.15, with the errata of
docs/protocols/pressure.md, for a server or a library without scripts. Prefer
pressure_client.py: a client like this one that is killed keeps its role, and the doctor
(lockkeeper queue doctor --repair) has to return it. Arguments and exit codes are the same.
"""
import contextlib, time

from pressure_client import QueueBase, QueueError, main

class Queue(QueueBase):
    def create(self, bound=0):
        if not self.server.setnx(self.key("bound"), bound):
            raise QueueError("already")
        for each in ("producer_free", "consumer_free", "not_full"):
            self.server.lpush(self.key(each), 1)

    def bound(self):
        """Shows as well whether the queue exists."""
        bound = self.server.get(self.key("bound"))
        if bound is None:
            raise QueueError("absent")
        return int(bound)

    def pop(self, key, until, why):
        """Waits, a second at a time. A close or deletion may push no element."""
        self.bound()
        while True:
            left = until - time.monotonic()
            popped = self.server.brpop(key, max(0.01, min(1, left)))
            if popped:
                return popped[1]
            self.bound()  # a deletion pushes to :closed, too
            if key == self.data and self.server.exists(self.key("closed")):
                # A client may have put an element before it saw that.
                last = self.server.rpop(key)
                if last is None:
                    raise QueueError("closed")
                return last
            if left <= 0:
                raise QueueError(why)

    @contextlib.contextmanager
    def role(self, name, until):
        """Returned whatever happens. The original pseudo-code keeps it after an error."""
        self.pop(self.key(f"{name}_free"), until, "busy")
        try:
            self.server.set(self.key(name), self.id)
            yield
        finally:
            self.server.lpush(self.key(f"{name}_free"), 1)

    def space(self):
        """Signals that there is space: exactly one element of :not_full."""
        with self.server.pipeline(transaction=True) as both:
            both.lpush(self.key("not_full"), 1).ltrim(self.key("not_full"), 0, 0).execute()

    def count(self, verb, element):
        self.server.incr(self.key(f"stats:{verb}_messages"))
        self.server.incrby(self.key(f"stats:{verb}_bytes"), len(element))

    def put(self, *elements, timeout=float("inf")):
        until = time.monotonic() + timeout
        for element in elements:
            with self.role("producer", until):
                # After the role, because the queue may be closed while this waits for it.
                if self.server.exists(self.key("closed")):
                    raise QueueError("closed")
                if self.bound() > 0:
                    self.pop(self.key("not_full"), until, "full")
                bound = self.bound()  # a deletion pushes to :not_full
                length = self.server.lpush(self.data, element)
                if bound == 0 or length < bound:
                    self.space()
                self.count("produced", element)

    def get(self, most=1, timeout=float("inf")):
        """One element. It is stored nowhere else."""
        until = time.monotonic() + timeout
        with self.role("consumer", until):
            element = self.server.rpop(self.data)
            if element is None:
                # Not together with :closed, as in the pseudo-code: that takes its element.
                element = self.pop(self.data, until, "empty")
            # Compared, unlike in the pseudo-code, or a full queue would signal space.
            # Not self.bound(), which fails during a deletion: the element would be lost.
            bound = int(self.server.get(self.key("bound")) or 0)
            if bound == 0 or self.server.llen(self.data) < bound:
                self.space()
            self.count("consumed", element)
        return [element]

    def close(self, timeout=float("inf")):
        with self.role("producer", time.monotonic() + timeout):
            if self.server.exists(self.key("closed")):
                raise QueueError("already")
            self.server.lpush(self.key("closed"), 0, 0)

    def __len__(self):
        self.bound()
        return self.server.llen(self.data)

if __name__ == "__main__":
    main(Queue)
