"""Waits for a numbered slot in turn with other clients, and keeps its record.

What the two protocols with numbered slots share, after docs/protocols/persistent-semaphore.md
("Waiting", "Slot records"). A subclass has free(), which yields the numbers of free slots,
take(slot), give_back(), and `protocol`, or None for a mutex.
"""
import itertools, json, random, time

import pika
from pika.exceptions import ChannelClosedByBroker, NackError

from under_lock import VERIFY, check, close, connect, facts, now, utc

RACES = 5  # lost races after which an attempt ends
OUTLIVES = "1800000"  # expiration of a wake-up that can be kept while the slot is held

class Slot:
    """At most one held slot. An alarm blocks publishers, so the holding connection never
    publishes. The other connection waits and publishes."""

    slots = 0  # how many free() has seen, when it has seen all

    def __init__(self, url, name, reason):
        self.url, self.name, self.facts = url, name, facts(reason)
        self.title = f"{self.client} client of {name}"
        self.hold, self.other = connect(url, self.title), connect(url, self.title)
        self.searching = [self.other]  # until the slot is held
        self.lost, self.doubt, self.record, self.environment = None, False, None, {}
        self.woken = []
        self.kept = None  # a wake-up, which the broker gives the next waiter if this client dies

    def acquire(self, timeout, priority=0):
        try:
            return self.acquire_slot(timeout, priority)
        except BaseException:
            close(self.hold, *self.searching)
            raise

    def acquire_slot(self, timeout, priority):
        until = now() + timeout
        if self.protocol:
            check(self.other, self.name, self.protocol)
        waiting = self.waiters(self.other)
        # A single try can't wait, so it takes a free slot.
        held = (not waiting or timeout <= 0) and self.try_acquire()
        if not held and timeout > 0:
            held = self.poll(until) if waiting is None else self.wait(until, priority)
        if held and not self.begin_record(until):
            self.give_back()  # the record shows for how long the next client must rest
            held = False
        if held:
            self.environment.update(LOCK_NAME=self.name, LOCK_SLOT=str(self.number))
        for connection in self.searching:
            connection.close()
        return held

    def try_acquire(self, others=0):
        """Any slot if more are free than other clients wait."""
        for race in range(RACES):
            free = list(itertools.islice(self.free(), others + 1))
            if len(free) <= others:
                return False
            if self.take(random.choice(free)):
                return True
            if race == 0:
                time.sleep(random.uniform(0, 0.05))  # spreads the clients that lost together
        return False

    def poll(self, until):
        pause = 0.1
        while now() < until:
            self.hold.sleep(max(0, random.uniform(0, min(pause, until - now()))))
            self.keep_alive()
            pause = min(pause * 2, 2)
            if self.try_acquire():
                return True
        return False

    def waiters(self, connection):
        """None: the lock has no wait queue."""
        channel = connection.channel()
        try:
            count = channel.queue_declare(f"{self.name}-W", passive=True).method.consumer_count
        except ChannelClosedByBroker as refused:
            if refused.reply_code in (403, 404):
                return None
            raise
        channel.close()
        return count

    def wait(self, until, priority):
        # On the connection that is to hold the slot: a wake-up that is kept ends with it.
        channel, queue = self.hold.channel(), f"{self.name}-W"
        # Asked before it joins: of clients that join together, at least one sees none.
        others = self.waiters(self.other) or 0
        # Two wake-ups: while the first is in vain, the next release must reach this client.
        channel.basic_qos(prefetch_count=2)
        order = {"x-priority": priority}
        tag = channel.basic_consume(
            queue, lambda _, method, properties, body: self.woken.append((method, properties)),
            arguments=order)
        # Slots released before this client joined woke no waiter.
        held, wake_up, properties = self.try_acquire(others), None, None
        # Seconds after which a client that was not woken looks itself.
        net = min(others or 12, self.usual())
        while not held and now() < until:
            if wake_up:
                channel.basic_ack(wake_up.delivery_tag)
                wake_up = None
            if self.sleep(net, until):
                wake_up, properties = self.woken.pop(0)
                number = properties.correlation_id
                held = self.take(int(number)) if number else self.try_acquire()
                net = self.usual()
            elif next(self.free(), None) is None:
                net = self.usual()
            # Free twice: the holder has died, or the waiter that was woken is suspended.
            elif net == 0.6:
                held = self.try_acquire()
            else:
                net = 0.6
        # Not earlier, or other clients see no waiter and take the slot. Another wake-up
        # goes to the next waiter, unless it is for this slot.
        channel.basic_cancel(tag)
        for another, about in self.woken:
            if held and about.correlation_id == str(self.number):
                channel.basic_ack(another.delivery_tag)
            else:
                channel.basic_reject(another.delivery_tag, requeue=True)
        if held and wake_up and properties.expiration == OUTLIVES:
            self.kept = channel, wake_up.delivery_tag
        else:
            if wake_up:
                channel.basic_ack(wake_up.delivery_tag)
            channel.close()
        if held and self.waiters(self.other) and next(self.free(), None):
            self.wake(self.other, None)
        return held

    def usual(self):
        """Many slots are looked at less often."""
        return min(max(4, self.slots / 4), 12)

    def sleep(self, net, until):
        """Until this client is woken, or for one to one and a half times `net`."""
        end = min(until, now() + random.uniform(net, 1.5 * net))
        while not self.woken and now() < end:
            self.hold.process_data_events(time_limit=max(0, min(1, end - now())))
            self.keep_alive()
        return bool(self.woken)

    def keep_alive(self):
        for connection in (self.hold, *self.searching):
            connection.process_data_events(time_limit=0)

    def release(self):
        try:
            if self.record:
                self.with_other(lambda other: self.replace(other, self.released))
            self.give_back()
            if self.waiters(self.hold):
                self.with_other(lambda other: self.wake(other, str(self.number)))
            if self.kept:
                channel, wake_up = self.kept
                channel.basic_ack(wake_up)
        finally:
            close(self.hold)

    def wake(self, other, number):
        """Wakes one of the waiters, for this slot."""
        properties = pika.BasicProperties(correlation_id=number, expiration=OUTLIVES)
        other.channel().basic_publish("", f"{self.name}-W", b"", properties)

    def with_other(self, use):
        other = connect(self.url, self.title)
        try:
            use(other)
        finally:
            close(other)

    def begin_record(self, until):
        """Takes the fencing token, and rests if the last holder ended uncleanly. False:
        there was no time for that."""
        self.record = self.replace(self.other, self.acquired)
        if not self.record:
            return True
        self.environment["LOCK_TOKEN"] = str(self.record["token"])
        if "rested" not in self.record:
            return True
        rested = now() + (self.record["delay"] - self.record["rested"]) / 1000
        if rested > until:
            return False
        while now() < rested:
            self.hold.sleep(min(1, max(0, rested - now())))
            self.keep_alive()
            if now() > self.proven + VERIFY:
                self.verify()
        self.replace(self.other, self.begun)
        return True

    def acquired(self, found):
        record = {"token": int(time.time() * 1e6), "delay": 0, **(found or {"state": "held"})}
        record["token"] += 1
        must_rest = record["state"] == "held" and record["delay"] > 0
        record.update(holder=self.facts["x-lockkeeper-id"], state="held", since=utc())
        if must_rest:
            record.setdefault("rested", 0)
        else:
            record.pop("rested", None)
        return record

    def begun(self, found):
        return {key: value for key, value in self.record.items() if key != "rested"}

    def released(self, found):
        token = max(self.record["token"], found["token"] if found else 0)
        return {**self.begun(found), "token": token, "state": "released", "since": utc()}

    def replace(self, other, change):
        """Replaces the slot's record. None: it has none. A crash at any point leaves the
        old record, the new one, or both."""
        queue, channel, found = f"{self.name}-{self.number}-F", self.hold.channel(), []
        publisher = other.channel()
        publisher.confirm_delivery()
        while True:
            try:
                while (message := channel.basic_get(queue))[0]:
                    found.append(message)
            except ChannelClosedByBroker as refused:
                if not refused.reply_text.startswith("NOT_FOUND - no queue"):
                    raise  # perhaps its node is down
                return None
            record = change(merge([json.loads(body) for _, _, body in found]))
            try:
                persistent = pika.BasicProperties(delivery_mode=2)
                body = json.dumps(record).encode()
                publisher.basic_publish("", queue, body, persistent, mandatory=True)
            except NackError:
                continue  # an administrator's record has arrived
            for method, _, _ in found:
                channel.basic_ack(method.delivery_tag)
            channel.close()
            return record

def merge(records):
    """Combines what a crash may have left."""
    if not records:
        return None
    def order(record):
        rested = record.get("rested")
        return (record["token"], record["state"] == "released", rested is None, -(rested or 0))
    held = [record for record in records if record["holder"]]
    newest = max(held, key=order) if held else max(records, key=lambda r: r["state"] == "held")
    return {**newest, "token": max(record["token"] for record in records)}
