"""Runs a command while a lock is held: what the three lock clients of this folder share.

A lock has `hold`, the connection that holds it, `proven`, when the last answered proof was
sent, `lost`, why it is lost or None, `environment` for the command, `doubt`, and the
methods acquire(timeout, priority), verify() and release(). verify() fails with an
AMQPError if the lock is lost.
"""
import argparse, ctypes, os, signal, subprocess, sys, threading, time

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

HEARTBEAT = 10  # seconds; the broker frees a silent holder after 2 to 3 of them
VALID = 2 * HEARTBEAT * 0.98 - 0.5  # seconds after sending a proof for which the lock is ours
VERIFY = 5  # seconds between proofs
KILL_AFTER = 3  # seconds that the command has to end when the lock is lost

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # counts while the machine is suspended

def utc():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

def connect(url, name):
    parameters = pika.URLParameters(url)
    parameters.heartbeat = HEARTBEAT
    parameters.blocked_connection_timeout = HEARTBEAT
    parameters.client_properties = {"connection_name": name}
    return pika.BlockingConnection(parameters)

def close(*connections):
    """Closes what is still open. A client whose acquire() or release() fails must close every
    connection: an open one keeps its slot, and its consumer swallows wake-ups."""
    for connection in connections:
        try:
            connection.close()
        except (AMQPError, OSError):
            pass  # it has ended already

class LockError(Exception):
    """There is no such lock (81), or it is one of another protocol (64)."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

def exists(connection, queue):
    """By a passive declare, which publishes nothing. A queue that is missing closes the
    channel."""
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as refused:
        if refused.reply_text.startswith("NOT_FOUND - no queue"):
            return False
        if refused.reply_code != 405:  # another connection's
            raise  # perhaps its node is down
        return True
    channel.close()
    return True

def check(connection, name, protocol):
    """Fails unless the lock exists and is one of this protocol. Clients of two protocols would
    hold it at the same time."""
    slot, holder, token = f"{name}-1-A", f"{name}-1-C", f"{name}.semaphore"
    if protocol == "Token" and exists(connection, token):
        return
    # In this order: an administrator declares C before A.
    has_slot = exists(connection, slot)
    if exists(connection, holder):
        found, queue = "ExclusiveConsumer", holder
    elif has_slot and (protocol != "ExclusiveConsumer" or exists(connection, slot)):
        found, queue = "ExclusiveQueue", slot
    elif protocol != "Token" and exists(connection, token):
        found, queue = "Token", token
    # Closed, or an administrator is about to create or remove it.
    elif exists(connection, f"{name}-W") or exists(connection, name):
        return
    else:
        raise LockError(81, f"there is no semaphore {name}: check its name, profile and virtual "
                        "host, or create it")
    if found != protocol:
        raise LockError(64, f"the lock is one of protocol {found}, as the queue \"{queue}\" "
                        "shows: use that protocol, or choose another lock name")

def facts(reason):
    """By which a holder describes itself, to everyone who may see the queues."""
    return {"x-lockkeeper-id": os.urandom(10).hex(),
            "x-lockkeeper-identity": f"pid {os.getpid()} on {os.uname().nodename}",
            "x-lockkeeper-reason": reason[:200],
            "x-lockkeeper-since": utc()}

def stop(child):  # and its children
    for sign, patience in ((signal.SIGTERM, KILL_AFTER), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, sign)
            child.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass

def start(command, environment):
    """The kernel kills the command if this program is killed, which frees the lock."""
    def end_with_parent():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    return subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent,
                            env=environment)

def run(lock, command):
    received = []  # signals, before there is a command too
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda number, _: received.append(number))
    child = start(command, {**os.environ, **lock.environment})
    def deadline():  # in a separate thread: pika may hang with the network
        while now() < lock.proven + VALID - KILL_AFTER:
            time.sleep(0.1)
        stop(child)
        os._exit(80)
    threading.Thread(target=deadline, daemon=True).start()
    try:
        while child.poll() is None:
            while received:
                os.killpg(child.pid, received.pop(0))
            lock.hold.process_data_events(time_limit=0.05)  # heartbeats, and a loss
            if lock.lost:
                raise AMQPError(lock.lost)
            if lock.doubt or now() > lock.proven + VERIFY:
                lock.verify()
        lock.release()
    except AMQPError as error:
        stop(child)
        print(f"{lock.name} was lost: {error!r}", file=sys.stderr)
        return 80
    return child.returncode if child.returncode >= 0 else 128 - child.returncode

def main(kind):
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=float("inf"))
    parser.add_argument("--priority", type=int, default=0)
    parser.add_argument("lock")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if not os.environ.get("AMQP_URL"):
        parser.error("name the broker: set AMQP_URL")
    try:
        lock = kind(os.environ["AMQP_URL"], given.lock, " ".join(given.command))
        if not lock.acquire(given.timeout, given.priority):
            print(f"{given.lock} was not acquired in time", file=sys.stderr)
            sys.exit(75)
    except LockError as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
    except (AMQPError, OSError) as error:  # OSError: no such host
        print(f"the broker can't be asked: {error!r}", file=sys.stderr)
        sys.exit(69)
    sys.exit(run(lock, given.command))
