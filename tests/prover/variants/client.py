"""Answers the requests of lockkeeper-prove, one JSON object a line, by a client of one protocol.
See queues.py, consumers.py and tokens.py for the protocols and their variants."""
import json, os, select, sys, time

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

FULL = {"fail": "full"}
NOT_HELD = {"fail": "not held"}
HELD = {"ok": {}}

class Client:
    """At most one hold, on a connection that is kept for the next one. A subclass has attempt(),
    which returns what the client holds or None, and check() and give_back()."""

    heartbeat = 10  # seconds
    poll = 0.02  # seconds between two attempts

    def __init__(self):
        self.connection = self.channel = self.held = self.gone = None

    def connect(self):
        parameters = pika.URLParameters(os.environ["AMQP_URL"])
        parameters.heartbeat = self.heartbeat
        return pika.BlockingConnection(parameters)

    def open(self):
        if self.connection is None or not self.connection.is_open:
            self.drop()
            self.connection = self.connect()
            self.channel = self.connection.channel()
            self.opened()

    def opened(self):
        pass

    def drop(self):
        """Ends the connection, and with it whatever it holds."""
        connection, self.connection = self.connection, None
        self.held = self.gone = None
        try:
            if connection:
                connection.close()
        except AMQPError:
            pass  # it has ended already

    def sleep(self, seconds):
        self.connection.sleep(seconds)

    # ------------------------------------------------------------ requests

    def acquire(self, request):
        if self.held is not None:
            return {"fail": "this process holds already"}
        self.lock, until = request["lock"], time.monotonic() + request.get("wait_ms", 0) / 1000
        self.open()
        while (got := self.attempt()) is None:
            left = until - time.monotonic()
            if left <= 0:
                return self.full()
            self.sleep(min(left, self.poll))
        return self.granted(got)

    def granted(self, got):
        self.held = got
        return {"ok": self.describe(got)}

    def describe(self, got):
        return {"slot": got}

    def full(self):
        return FULL

    def verify(self, request):
        if self.held is None:
            return NOT_HELD
        return {"ok": {"draining": self.check()}}

    def believes(self, request):
        return HELD if self.held is not None and self.connection.is_open else NOT_HELD

    def release(self, request):
        if self.held is None:
            return NOT_HELD
        got, self.held = self.held, None
        self.give_back(got)
        return HELD

    # ------------------------------------------------------------ the driver

    def loss(self):
        """Why the hold was lost, or None. Called several times a second while it holds."""
        self.connection.process_data_events(time_limit=0)
        return self.gone

    def lines(self):
        while True:
            while self.held is not None and not select.select([sys.stdin], [], [], 0.1)[0]:
                try:
                    why = self.loss()
                except AMQPError as error:
                    why = repr(error)
                if why:
                    self.forget()
                    say({"lost": why})
            line = sys.stdin.readline()
            if not line:
                return
            yield json.loads(line)

    def forget(self):
        """After a loss."""
        self.drop()

    def serve(self):
        for request in self.lines():
            verb = request["do"]
            if verb not in self.verbs():
                say({"fail": "unsupported"})
                continue
            try:
                reply = getattr(self, verb)(request)
            except AMQPError as error:
                # What its connection held, it holds no more.
                self.forget()
                reply = {"fail" if verb == "verify" else "info": repr(error)}
            except Exception as error:
                reply = {"info": repr(error)}
            say(reply)

    def verbs(self):
        return ("acquire", "verify", "believes", "release")

def say(reply):
    print(json.dumps(reply), flush=True)

def code(action, *arguments, **options):
    """0, or the code with which the broker closed the channel."""
    try:
        action(*arguments, **options)
        return 0
    except ChannelClosedByBroker as refused:
        return refused.reply_code
