#!/usr/bin/env python3
"""Runs a command while it holds a true mutex in RabbitMQ.

    AMQP_URL=... mutex_client.py [--timeout SECONDS] [--priority N] MUTEX -- COMMAND...

To read, to copy from and to import (with its neighbours guideline_client.py, slots.py and
under_lock.py): what docs/protocols/mutex.md requires, with nothing but pika. The mutex does
not have to be created. The command finds LOCK_NAME in its environment. Exits as the command
does, or 69: no broker, 75: not acquired in time, 80: lost.
"""
from pika.exceptions import AMQPError

from guideline_client import GuidelineSlot
from under_lock import main, now

class Mutex(GuidelineSlot):
    """A lock with one slot, which always exists and has no record."""

    client, protocol = "mutex", None

    def free(self):
        if not self.exists(self.name):
            yield 1

    def take(self, slot):
        self.number, self.holder, self.proven = slot, self.name, now()
        return self.declare(self.name, exclusive=True, arguments=self.facts) == 0

    def begin_record(self, until):
        return True

    def acquire(self, timeout, priority=0):
        held = super().acquire(timeout, priority)
        self.environment.pop("LOCK_SLOT", None)
        return held

    def waiters(self, connection):
        return super().waiters(connection) or 0

    def wait(self, until, priority):
        # The first waiter declares the wait queue, which vanishes when it is not used.
        arguments = {"x-queue-type": "classic", "x-expires": 10_000}
        self.other.channel().queue_declare(f"{self.name}-W", durable=True, arguments=arguments)
        return super().wait(until, priority)

    def verify(self):
        """Only that our connection may look at the queue proves that the mutex is ours."""
        sent = now()
        if self.declare(self.name, passive=True) != 0:
            raise AMQPError("the queue of the mutex is gone")
        self.proven = sent
        return "held"

if __name__ == "__main__":
    main(Mutex)
