#!/usr/bin/env python3
"""Runs a command while it holds a slot of a persistent semaphore, with as little as possible.

    AMQP_URL=... minimal_client.py [--timeout SECONDS] [--profile PROFILE] LOCK -- COMMAND...

It is written for a driver without heartbeats, consumers and threads: queue.declare,
queue.delete, and basic.publish with confirms (docs/protocols/persistent-semaphore.md, "What a
driver must support"). To read, to copy from and to import (with under_lock.py beside it). The
command finds LOCK_NAME and LOCK_SLOT in its environment. Exits as the command does, or 69: no
broker, or a lock with records, 64: a lock of another protocol, 75: no slot, 80: lost, 81: no such
lock.
"""
import argparse, contextlib, os, random, signal, sys, time

import pika
from pika.exceptions import (
    AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker, NackError, UnroutableError)

from under_lock import KILL_AFTER, LockError, check, exists, facts, now, start, stop

QUEUES = {"guideline": "{lock}-{slot}-{part}", "amqp-locks-python": "{lock}-{part}-{slot}"}
VERIFY = 1  # seconds between verifications
VALID = 10  # seconds after sending an answered verification for which the slot is used
RACES = 5  # lost races after which an attempt ends

class SlotError(AMQPError):
    __repr__ = AMQPError.__str__

def silent(*_):
    raise SlotError("the broker does not answer")

@contextlib.contextmanager
def answered_by(deadline):
    """A driver without heartbeats would wait forever for a broker that is cut off."""
    signal.setitimer(signal.ITIMER_REAL, max(0.001, deadline - now()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

class MinimalSlot:
    """At most one held slot. An alarm blocks publishers, so the holding connection never
    publishes. Another one probes and wakes."""

    def __init__(self, url, lock, profile, reason):
        self.url, self.lock, self.names = url, lock, QUEUES[profile]
        self.facts = {**facts(reason), "x-max-length": 0}  # otherwise probes would pile up
        self.hold, self.draining = self.connect(), False
        self.channel = self.hold.channel()
        self.connect_probe()

    def connect_probe(self):
        self.other = self.connect()
        self.probe = self.other.channel()
        self.probe.confirm_delivery()

    def connect(self):
        parameters = pika.URLParameters(self.url)
        parameters.heartbeat, parameters.blocked_connection_timeout = 0, VALID
        parameters.client_properties = {"connection_name": f"minimal client of {self.lock}"}
        return pika.BlockingConnection(parameters)

    def queue(self, part, slot):
        return self.names.format(lock=self.lock, slot=slot, part=part)

    def exists(self, queue):
        """By a publish, which closes no channel, and does not say whose it is."""
        try:
            gone = pika.BasicProperties(expiration="0")
            self.probe.basic_publish("", queue, b"", gone, mandatory=True)
            return True
        except UnroutableError:
            return False
        except NackError:  # it rejects messages, or has just been deleted
            pass
        except ConnectionClosedByBroker as closed:
            if closed.reply_code != 506:  # deleted while the message was routed, since 4.2
                raise
            self.connect_probe()
        return self.is_found(queue)

    def declare(self, queue, **options):
        """The number of its consumers. None: there is no such queue (404), or another
        connection owns it (405). That closes only the channel."""
        try:
            return self.channel.queue_declare(queue, **options).method.consumer_count
        except ChannelClosedByBroker as rejected:
            self.channel, self.rejection = self.hold.channel(), rejected.reply_text
            if rejected.reply_code not in (404, 405):
                raise

    def is_found(self, queue):
        """Also if another connection owns it, or its node is down."""
        found = self.declare(queue, passive=True) is not None
        return found or not self.rejection.startswith("NOT_FOUND - no queue")

    def waiters(self):
        """Not by a publish, which would wake one."""
        return self.declare(f"{self.lock}-W", passive=True) or 0

    def refuse_records(self, slot):
        """Not by a publish, to which the record of a node that is down looks missing."""
        if self.is_found(self.queue("F", slot)):
            raise SlotError("it has records, which this client cannot replace")

    def acquire(self, timeout):
        until, pause = now() + timeout, 0.1
        with answered_by(now() + VALID):
            # Without A in the names of its own profile, it may be one of the guideline's.
            if self.names == QUEUES["guideline"] or not exists(self.other, self.queue("A", 1)):
                check(self.other, self.lock, "ExclusiveQueue")
            self.refuse_records(1)
        while not self.try_acquire(in_turn=timeout > 0):
            if now() >= until:
                return False
            time.sleep(random.uniform(0, max(0, min(pause, until - now()))))
            pause = min(pause * 2, 2)
        with answered_by(now() + VALID):
            self.other.close()
        return True

    def try_acquire(self, in_turn):
        """A client without consumers cannot wait in the wait queue, so it comes after those
        that do. A single try takes any free slot."""
        for race in range(RACES):
            with answered_by(now() + VALID):
                free = list(self.free())
                if len(free) <= (self.waiters() if free and in_turn else 0):
                    return False
                if self.take(random.choice(free)):
                    return True
            if race == 0:
                time.sleep(random.uniform(0, 0.05))  # spreads the clients that lost together
        return False

    def free(self):
        slot = 1
        while self.exists(self.queue("A", slot)):
            if not self.exists(self.queue("B", slot)):
                yield slot
            slot += 1

    def take(self, slot):
        self.number, self.holder, self.proven = slot, self.queue("B", slot), now()
        if self.declare(self.holder, exclusive=True, arguments=self.facts) is None:
            return False
        # The slot may have been removed during the declare.
        if self.declare(self.queue("A", slot), passive=True) is None:
            self.channel.queue_delete(self.holder)
            return False
        self.refuse_records(slot)
        return True

    def verify(self):
        """Only that this connection may look at B proves that it holds the slot. Without A
        the slot is draining: it stays ours until we release it."""
        sent, deadline = now(), self.proven + VALID - KILL_AFTER
        if sent >= deadline:
            raise SlotError("no verification was answered in time")
        with answered_by(deadline):
            if self.declare(self.holder, passive=True) is None:
                raise SlotError("the holder queue is gone")
            self.proven = sent
            slot_queue = self.queue("A", self.number)
            if not self.draining and self.declare(slot_queue, passive=True) is None:
                self.draining = True
                print(f"slot {self.number} of {self.lock} is draining", file=sys.stderr)

    def release(self):
        with answered_by(now() + VALID):
            self.channel.queue_delete(self.holder)  # closing only the channel would not
            waiters = self.waiters()
        with contextlib.suppress(AMQPError), answered_by(now() + VALID):
            if waiters:
                wake_up = pika.BasicProperties(correlation_id=str(self.number),
                                               expiration="1800000")
                other = self.connect()
                other.channel().basic_publish("", f"{self.lock}-W", b"", wake_up)
                other.close()
            self.hold.close()

def run(slot, command):
    environment = {**os.environ, "LOCK_NAME": slot.lock, "LOCK_SLOT": str(slot.number)}
    received = []  # signals, before there is a command too
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda number, _: received.append(number))
    child = start(command, environment)
    try:
        while child.poll() is None:
            while received:
                os.killpg(child.pid, received.pop(0))
            slot.hold.process_data_events(time_limit=0.1)  # ends with the connection
            if now() > slot.proven + VERIFY:
                slot.verify()
        slot.release()
    except AMQPError as error:
        stop(child)
        print(f"{slot.lock} was lost: {error!r}", file=sys.stderr)
        return 80
    return child.returncode if child.returncode >= 0 else 128 - child.returncode

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=float("inf"))
    parser.add_argument("--profile", choices=QUEUES, default="guideline")
    parser.add_argument("lock")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if not os.environ.get("AMQP_URL"):
        parser.error("name the broker: set AMQP_URL")
    signal.signal(signal.SIGALRM, silent)
    try:
        reason = " ".join(given.command)
        slot = MinimalSlot(os.environ["AMQP_URL"], given.lock, given.profile, reason)
        if not slot.acquire(given.timeout):
            print(f"{given.lock} was not acquired in time", file=sys.stderr)
            sys.exit(75)
    except LockError as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
    except (AMQPError, OSError) as error:  # OSError: no such host
        print(f"{given.lock} cannot be acquired: {error!r}", file=sys.stderr)
        sys.exit(69)
    sys.exit(run(slot, given.command))

if __name__ == "__main__":
    main()
