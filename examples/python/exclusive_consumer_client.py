#!/usr/bin/env python3
"""Runs a command while it holds a slot of a semaphore of protocol ExclusiveConsumer.

    AMQP_URL=... exclusive_consumer_client.py [--timeout SECONDS] LOCK -- COMMAND...

To read and to copy from: what docs/protocols/exclusive-consumer.md requires, with nothing
but pika. Exits as the command does, or 69: no broker, 75: no slot, 80: lost.
"""
import argparse, os, random, signal, subprocess, sys, threading, time

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

HEARTBEAT = 10  # seconds; the broker frees a silent holder after 2 to 3 of them
VALID = 2 * HEARTBEAT * 0.98 - 0.5  # seconds after sending a proof for which the slot is ours
VERIFY = 5  # seconds between proofs
KILL_AFTER = 3  # seconds that the command has to end when the slot is lost

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # counts while the machine is suspended

class Slot:
    def __init__(self, url, lock):
        self.lock = lock
        parameters = pika.URLParameters(url)
        parameters.heartbeat = HEARTBEAT
        parameters.client_properties = {"connection_name": f"consumer client of {lock}"}
        # This connection never publishes, because an alarm blocks publishers.
        self.hold = pika.BlockingConnection(parameters)
        self.looking = self.hold.channel()

    def consumers(self, queue):
        """How many consume from it; None: there is no such queue, which closes a channel."""
        try:
            return self.looking.queue_declare(queue, passive=True).method.consumer_count
        except ChannelClosedByBroker as refused:
            self.looking = self.hold.channel()
            if refused.reply_code != 404:
                raise

    def take(self, slot, facts):
        """On a channel of its own: whatever closes that ends the consumer."""
        self.number, self.holder, self.proven = slot, f"{self.lock}-{slot}-C", now()
        self.lost, self.doubt, self.channel = None, False, self.hold.channel()
        self.channel.add_on_cancel_callback(self.gone)
        try:
            self.channel.basic_consume(
                self.holder, self.told, auto_ack=True, exclusive=True, arguments=facts,
                consumer_tag="lockkeeper-" + facts["x-lockkeeper-id"])
            # A quorum queue permits a second exclusive consumer. This declare rejects
            # such a queue (406).
            as_made = {"x-max-length": 0, "x-queue-type": "classic"}
            self.channel.queue_declare(self.holder, durable=True, arguments=as_made)
        except ChannelClosedByBroker as refused:
            if refused.reply_code == 404 or "exclusive use" in refused.reply_text:
                return False
            raise
        # The slot may have been removed before the consume, or not exist yet.
        if self.consumers(f"{self.lock}-{slot}-A") is None:
            self.release()
            return False
        return True

    def try_acquire(self, facts):
        slot = 1
        while (consumers := self.consumers(f"{self.lock}-{slot}-C")) is not None:
            if consumers == 0 and self.take(slot, facts):
                return True
            slot += 1
        return False

    def told(self, channel, method, properties, body):  # a message from an administrator
        if body.startswith(b"revoke"):
            self.lost = body.decode("utf-8", "replace")
        elif body == b"drain":  # the slot was removed, but is ours until we release it
            print(f"slot {self.number} of {self.lock} is draining", file=sys.stderr)
        else:
            self.doubt = True  # for example a probe's empty message: verify

    def gone(self, method):  # the broker cancelled the consumer
        self.lost = "its queue was deleted"

    def verify(self):
        """On the consumer's channel: that answers only while we consume."""
        sent, self.doubt = now(), False
        if self.channel.queue_declare(self.holder, passive=True).method.consumer_count == 0:
            raise AMQPError("nobody consumes from the holder queue")
        self.proven = sent

    def release(self):
        self.channel.close()  # ends the consumer; cancelling it does as well

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
            slot.hold.process_data_events(time_limit=0.05)  # heartbeats and messages
            if slot.lost:
                raise AMQPError(slot.lost)
            if slot.doubt or now() > slot.proven + VERIFY:
                slot.verify()
        slot.release()
        slot.hold.close()
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
    facts = {"x-lockkeeper-id": os.urandom(10).hex(),
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
    except AMQPError as error:
        print(f"the broker can't be asked: {error!r}", file=sys.stderr)
        sys.exit(69)
    sys.exit(run(slot, given.command))

main()
