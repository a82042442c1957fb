"""Clients of protocol ExclusiveQueue, after docs/protocols/persistent-semaphore.md: right ones,
and ones with one fault each."""
import itertools, random, socket, time

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, NackError, UnroutableError

from client import FULL, HELD, NOT_HELD, Client, code

class Right(Client):
    arguments = {"x-max-length": 0}
    durable = False

    def a(self, slot):
        return f"{self.lock}-{slot}-A"

    def b(self, slot):
        return f"{self.lock}-{slot}-B"

    def declare(self, queue, **options):
        """0, 404: there is none, or 405: it is another connection's. That closes the channel."""
        refused = code(self.channel.queue_declare, queue, **options)
        if refused:
            self.channel = self.connection.channel()
        return refused

    def exists(self, queue):
        return self.declare(queue, passive=True) == 0

    def slots(self):
        return itertools.takewhile(lambda slot: self.exists(self.a(slot)), itertools.count(1))

    def attempt(self):
        return next((slot for slot in self.slots() if self.take(slot)), None)

    def take(self, slot):
        if self.own(slot) != 0:
            return False
        # The slot may have been removed during the declare.
        if self.is_there(slot):
            return True
        self.give_back(slot)
        return False

    def own(self, slot):
        return self.declare(
            self.b(slot), exclusive=True, durable=self.durable, arguments=self.arguments)

    def is_there(self, slot):
        return self.exists(self.a(slot))

    def check(self):
        if self.declare(self.b(self.held), passive=True) != 0:
            raise AMQPError("the holder queue is gone")
        return not self.is_there(self.held)

    def give_back(self, slot):
        self.channel.queue_delete(self.b(slot))

# ---------------------------------------------------------------- unusual

class Slow(Right):
    def declare(self, queue, **options):
        time.sleep(0.01)
        return super().declare(queue, **options)

class PollsOften(Right):
    poll = 0.002

class PollsSeldom(Right):
    poll = 0.2

class RandomSlots(Right):
    def slots(self):
        slots = list(super().slots())
        random.shuffle(slots)
        return slots

class ProbesOnOtherConnections(Right):
    def exists(self, queue):
        connection = self.connect()
        there = code(connection.channel().queue_declare, queue, passive=True) == 0
        connection.close()
        return there

class ReportsNoSlot(Right):
    def describe(self, got):
        return {}

class NeverVerifies(Right):
    def verbs(self):
        return ("acquire", "believes", "release")

class ReleasesBySocket(Right):
    """By the end of its socket, without a word to the broker."""
    def give_back(self, slot):
        transport = self.connection._impl._transport
        transport._sock.shutdown(socket.SHUT_RDWR)
        try:
            self.connection.process_data_events(time_limit=1)
        except AMQPError:
            pass
        self.connection = None
        # The broker deletes the queue when it notices.
        self.open()
        while self.declare(self.b(slot), passive=True) == 405:
            self.sleep(0.005)

class ReleasesByClose(Right):
    def give_back(self, slot):
        self.drop()

class ProbesWithConfirms(Right):
    def opened(self):
        self.probe = self.connect()
        self.publisher = self.probe.channel()
        self.publisher.confirm_delivery()

    def exists(self, queue):
        gone = pika.BasicProperties(expiration="0")
        try:
            self.publisher.basic_publish("", queue, b"", gone, mandatory=True)
            return True
        except UnroutableError:
            return False
        except NackError:
            return super().exists(queue)

class ProbesInTransactions(Right):
    def opened(self):
        self.probe = self.connect()
        self.publisher = self.probe.channel()
        self.publisher.tx_select()
        self.returned = []
        self.publisher.add_on_return_callback(lambda *_: self.returned.append(True))

    def exists(self, queue):
        self.returned.clear()
        gone = pika.BasicProperties(expiration="0")
        self.publisher.basic_publish("", queue, b"", gone, mandatory=True)
        self.publisher.tx_commit()
        self.probe.process_data_events(time_limit=0)
        return not self.returned

class NoHeartbeats(Right):
    heartbeat = 0

class VerifiesByDeclaring(Right):
    """Again, on the connection that holds."""
    def check(self):
        if self.own(self.held) != 0:
            raise AMQPError("the holder queue is another's")
        return not self.is_there(self.held)

class TakesAllAndGivesBack(Right):
    def attempt(self):
        taken = [slot for slot in self.slots() if self.take(slot)]
        for slot in taken[1:]:
            self.give_back(slot)
        return taken[0] if taken else None

class ReleasesWhenDraining(Right):
    def verify(self, request):
        reply = super().verify(request)
        if self.held is not None and reply["ok"]["draining"]:
            self.release(request)
            return NOT_HELD
        return reply

class ReleasesTwice(Right):
    def give_back(self, slot):
        super().give_back(slot)
        super().give_back(slot)

class RemembersItsSlot(Right):
    last = 1

    def attempt(self):
        if self.exists(self.a(self.last)) and self.take(self.last):
            return self.last
        got = super().attempt()
        self.last = got or 1
        return got

class FullOnError(Right):
    """Its connection is closed, so it holds nothing."""
    def acquire(self, request):
        try:
            return super().acquire(request)
        except AMQPError:
            self.drop()
            return FULL

# ---------------------------------------------------------------- wrong

class VerifiesSeldom(Right):
    """The last answer is repeated for two seconds."""
    kept = 2
    asked = 0

    def check(self):
        if time.monotonic() > self.asked + self.kept:
            self.draining, self.asked = super().check(), time.monotonic()
        return self.draining

    def granted(self, got):
        self.draining, self.asked = False, time.monotonic()
        return super().granted(got)

class VerifiesOncePerTenMilliseconds(VerifiesSeldom):
    kept = 0.01

class VerifiesByItsLibrary(Right):
    def check(self):
        return not self.connection.is_open

class VerifiesNothing(Right):
    def verify(self, request):
        return HELD if self.held is not None else NOT_HELD

    def loss(self):
        return None

class VerifiesOnNewConnections(Right):
    """An exclusive queue of any other connection is taken for its own."""
    def verify(self, request):
        if self.held is None:
            return NOT_HELD
        try:
            return super().verify(request)
        except AMQPError:
            held, self.connection = self.held, self.connect()
            self.channel, self.held = self.connection.channel(), held
            return HELD if self.declare(self.b(held), passive=True) == 405 else NOT_HELD

    def loss(self):
        return None

class VerifiesA(Right):
    def check(self):
        if not self.is_there(self.held):
            raise AMQPError("the slot was removed")
        return False

class DeclaresAgainAfterLoss(Right):
    def forget(self):
        held, self.connection = self.held, None
        if held is not None:
            self.open()
            self.own(held)
            self.held = held

    def loss(self):
        try:
            return super().loss()
        except AMQPError:
            self.forget()

class RemembersTheSlots(Right):
    """Declares slots that it has seen once, without another look."""
    seen = ()

    def attempt(self):
        self.seen = self.seen or list(super().slots())
        return next((slot for slot in self.seen if self.own(slot) == 0), None)

class IgnoresReturns(ProbesWithConfirms):
    """Every probe succeeds, also the second look."""
    def exists(self, queue):
        try:
            return super().exists(queue) or not queue.endswith("-3-A")
        except NackError:
            return True

class Miscounts(Right):
    def describe(self, got):
        return {"slot": got + (random.random() < 0.05)}

class ForgetsTheDelete(Right):
    def give_back(self, slot):
        if random.random() > 0.1:
            super().give_back(slot)
        else:
            self.connection, self.kept = None, self.connection

class ReleasesLater(Right):
    """It answers first."""
    after = 0.2
    due = None

    def give_back(self, slot):
        self.due = (time.monotonic() + self.after, slot)

    def acquire(self, request):
        self.settle()
        return super().acquire(request)

    def settle(self):
        if self.due:
            until, slot = self.due
            self.due = None
            time.sleep(max(0, until - time.monotonic()))
            super().give_back(slot)

class ReleasesSoon(ReleasesLater):
    after = 0.01

class DeletesA(Right):
    def give_back(self, slot):
        super().give_back(slot)
        if random.random() < 0.02:
            self.channel.queue_delete(self.a(slot))

class DurableB(Right):
    durable = True

class BWithoutArguments(Right):
    """The guideline of the protocol has none, the protocol document requires one."""
    arguments = None

class LeavesBAndIsFull(Right):
    """B stays after a failed second look."""
    def attempt(self):
        for slot in self.slots():
            if self.own(slot) == 0:
                return slot if self.is_there(slot) else None
        return None

class LeavesBAndGoesOn(Right):
    def take(self, slot):
        return self.own(slot) == 0 and self.is_there(slot)

class LeavesBAndRaises(Right):
    def take(self, slot):
        if self.own(slot) != 0:
            return False
        if not self.is_there(slot):
            raise RuntimeError("the slot was removed")
        return True

class TimeoutIsSuccess(Right):
    def acquire(self, request):
        self.tried = 1
        reply = super().acquire(request)
        if reply == FULL and request.get("wait_ms", 0) > 0:
            return self.granted(1)
        return reply

class SeldomLooksAgain(Right):
    def is_there(self, slot):
        return (self.held is None and random.random() < 0.05) or super().is_there(slot)

class NeverLooksAgain(Right):
    def take(self, slot):
        return self.own(slot) == 0

class GrantsTwice(Right):
    """A declare on the connection that owns B succeeds."""
    def acquire(self, request):
        if self.held is not None and self.own(self.held) == 0:
            return self.granted(self.held)
        return super().acquire(request)

class TakesAll(Right):
    """Every free slot, of which it reports one."""
    def attempt(self):
        taken = [slot for slot in self.slots() if self.take(slot)]
        self.taken = taken
        return taken[0] if taken else None

    def give_back(self, slot):
        for slot in self.taken:
            super().give_back(slot)

class IsFullAndKeeps(Right):
    """One time in five, its next acquire gets what this one took."""
    saved = None

    def acquire(self, request):
        if self.saved is not None and self.held is None:
            saved, self.saved = self.saved, None
            return self.granted(saved)
        return super().acquire(request)

    def granted(self, got):
        if random.random() < 0.2:
            self.saved = got
            return FULL
        return super().granted(got)

class NeverDraining(Right):
    def check(self):
        super().check()
        return False

class Keeps(Right):
    """What it says it has lost stays on a connection that it forgets."""
    def forget(self):
        connections = self.__dict__.setdefault("kept", [])
        connections.append(self.connection)
        self.connection = self.held = None

class DrainingIsLost(Keeps):
    def check(self):
        if super().check():
            raise AMQPError("the slot was removed")
        return False

class LostForNoReason(Keeps):
    def loss(self):
        return super().loss() or ("a whim" if random.random() < 0.2 else None)

class RaisesInRelease(Keeps):
    def give_back(self, slot):
        if random.random() < 0.2:
            self.forget()
            raise RuntimeError("before the delete")
        super().give_back(slot)

class NeverWoken(Right):
    """Waits for ever for what it does not look at."""
    def sleep(self, seconds):
        self.waited = True

    def attempt(self):
        if self.__dict__.get("waited"):
            time.sleep(0.02)
            return None
        return super().attempt()

    def full(self):
        self.waited = False
        return FULL

class IgnoresTheWait(Right):
    def acquire(self, request):
        return super().acquire({**request, "wait_ms": 0})

class NoticesNoEnd(Right):
    """It never looks at its connection."""
    def verbs(self):
        return ("acquire", "believes", "release")

    def believes(self, request):
        return HELD if self.held is not None else NOT_HELD

    def loss(self):
        return None

class ReleasesTheChannel(Right):
    def give_back(self, slot):
        self.channel.close()
        self.channel = self.connection.channel()
