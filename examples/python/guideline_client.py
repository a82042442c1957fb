#!/usr/bin/env python3
"""Runs a command while it holds a slot of a persistent semaphore in RabbitMQ.

    AMQP_URL=... guideline_client.py [--timeout SECONDS] LOCK -- COMMAND...

To read and to copy from: what docs/protocols/persistent-semaphore.md requires, with
nothing but pika. Exits as the command does, or 69: no broker, 75: no slot, 80: lost.
"""
import argparse, os, random, signal, subprocess, sys, threading, time

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, UnroutableError

HEARTBEAT = 10  # seconds; the broker frees a silent holder after 2 to 3 of them
VALID = 2 * HEARTBEAT * 0.98 - 0.5  # seconds after sending a proof for which the slot is ours
VERIFY = 5  # seconds between proofs
KILL_AFTER = 3  # seconds that the command has to end when the slot is lost
RACES = 5  # lost races after which an attempt ends

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # counts while the machine is suspended

class Slot:
    """At most one held slot: a second declare of a holder queue succeeds on the
    connection that has it, so a connection must hold only one."""

    def __init__(self, url, lock):
        self.lock = lock
        parameters = pika.URLParameters(url)
        parameters.heartbeat = HEARTBEAT
        parameters.blocked_connection_timeout = HEARTBEAT
        parameters.client_properties = {"connection_name": f"guideline client of {lock}"}
        # An alarm blocks publishers, so the holding connection never publishes.
        self.hold = pika.BlockingConnection(parameters)
        self.channel = self.hold.channel()
        self.probing = pika.BlockingConnection(parameters)
        self.probe = self.probing.channel()
        self.probe.confirm_delivery()

    def exists(self, queue):
        """By a publish, which closes no channel, and doesn't say whose it is."""
        try:
            gone = pika.BasicProperties(expiration="0")
            self.probe.basic_publish("", queue, b"", gone, mandatory=True)
            return True
        except UnroutableError:
            return False

    def declare(self, queue, **options):
        """0, or 404: there is none, or 405: another connection's. That closes the
        channel, so only that is replaced."""
        try:
            self.channel.queue_declare(queue, **options)
            return 0
        except ChannelClosedByBroker as refused:
            self.channel = self.hold.channel()
            if refused.reply_code in (404, 405):
                return refused.reply_code
            raise

    def try_acquire(self, facts):
        for race in range(RACES):
            slot, sent = 1, now()
            while self.exists(f"{self.lock}-{slot}-A") and self.exists(f"{self.lock}-{slot}-B"):
                slot += 1
            if not self.exists(f"{self.lock}-{slot}-A"):
                return False
            holder = f"{self.lock}-{slot}-B"
            if self.declare(holder, exclusive=True, arguments=facts) == 0:
                # The slot may have been removed during the declare.
                if self.declare(f"{self.lock}-{slot}-A", passive=True) == 0:
                    self.number, self.proven = slot, sent
                    return True
                self.channel.queue_delete(holder)
            if race == 0:
                time.sleep(random.uniform(0, 0.05))  # spreads the clients that lost together
        return False

    def verify(self):
        """Only that our connection may look at B proves that the slot is ours. A is
        gone when the slot is draining: it stays ours until we release it."""
        sent = now()
        if self.declare(f"{self.lock}-{self.number}-B", passive=True) != 0:
            return "lost"
        self.proven = sent
        draining = self.declare(f"{self.lock}-{self.number}-A", passive=True)
        return "draining" if draining else "held"

    def release(self):
        self.channel.queue_delete(f"{self.lock}-{self.number}-B")
        self.hold.close()  # releases as well; closing only the channel would not

def stop(child):  # and its children
    for sign, patience in ((signal.SIGTERM, KILL_AFTER), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, sign)
            child.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass

def run(slot, command):
    os.environ.update(LOCK_NAME=slot.lock, LOCK_SLOT=str(slot.number))
    child = subprocess.Popen(command, start_new_session=True)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda number, _: os.killpg(child.pid, number))
    def deadline():  # in a separate thread: pika may hang with the network
        while now() < slot.proven + VALID - KILL_AFTER:
            time.sleep(0.1)
        stop(child)
        os._exit(80)
    threading.Thread(target=deadline, daemon=True).start()
    try:
        while child.poll() is None:
            slot.hold.process_data_events(time_limit=0.05)  # heartbeats, and the end of the connection
            if now() > slot.proven + VERIFY and slot.verify() == "lost":
                raise AMQPError("the holder queue is gone")
        slot.release()
    except AMQPError as error:
        stop(child)
        print(f"slot {slot.number} of {slot.lock} was lost: {error!r}", file=sys.stderr)
        return 80
    return child.returncode if child.returncode >= 0 else 128 - child.returncode

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=float("inf"))
    parser.add_argument("lock")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    until, pause = now() + given.timeout, 0.1
    facts = {"x-max-length": 0,  # otherwise probes would pile up
             "x-lockkeeper-id": os.urandom(10).hex(),
             "x-lockkeeper-identity": f"pid {os.getpid()} on {os.uname().nodename}",
             "x-lockkeeper-reason": " ".join(given.command)[:200],
             "x-lockkeeper-since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    try:
        slot = Slot(os.environ["AMQP_URL"], given.lock)
        while not slot.try_acquire(facts):
            if now() >= until:
                sys.exit(75)  # no slot is free, or the lock does not exist
            slot.hold.sleep(max(0, random.uniform(0, min(pause, until - now()))))
            pause = min(pause * 2, 2)
        slot.probing.close()
    except AMQPError as error:
        print(f"the broker can't be asked: {error!r}", file=sys.stderr)
        sys.exit(69)
    sys.exit(run(slot, given.command))

main()
