"""The run of dev/foreign for pressure: somebody else's client, in a process for each
operation, and `lockkeeper queue` work on the same queues in both roles. Prints the report
as Markdown. Arguments: kind, commit, lockkeeper, and the program that drives the client."""

import os
import random
import subprocess
import sys
import threading
import time
import urllib.parse

import redis

KIND, COMMIT, LOCKKEEPER, *DRIVER = sys.argv[1:]
URL = urllib.parse.urlsplit(os.environ["REDIS_URL"])
os.environ.update(
    REDIS_HOST=URL.hostname, REDIS_PORT=str(URL.port), REDIS_USER=URL.username,
    REDIS_PASSWORD=URL.password)
SERVER = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
SCRIPTS = os.path.join(os.path.dirname(__file__), "..", "src", "pressure", "scripts")
SUFFIXES = (
    "", ":bound", ":producer", ":consumer", ":producer_free", ":consumer_free",
    ":stats:produced_messages", ":stats:produced_bytes", ":stats:consumed_messages",
    ":stats:consumed_bytes", ":not_full", ":closed")
PATIENCE = 60
CLOSED, MISSING, REFUSED = 83, 81, 75
started = []


def start(command, stdin=None):
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True)
    started.append(process)
    # A thread reads and writes, so that no pipe can fill up.
    process.out = ""

    def talk():
        process.out = process.communicate(stdin)[0]

    process.talk = threading.Thread(target=talk)
    process.talk.start()
    return process


def end(process):
    """What it printed, and its code."""
    process.talk.join(PATIENCE)
    if process.talk.is_alive():
        process.kill()
        process.talk.join()
        return process.out.splitlines(), "never ended"
    return process.out.splitlines(), process.returncode


def theirs(verb, queue, *more, stdin=None):
    return start([*DRIVER, verb, queue, *map(str, more)], stdin)


def ours(verb, queue, *more, stdin=None):
    quiet = {"put": ["--quiet", "--keep-open"], "get": ["--quiet"], "delete": ["--yes"]}
    command = [LOCKKEEPER, "queue", verb, *quiet.get(verb, []), *map(str, more), queue]
    return start(command, stdin)


def code(process):
    return end(process)[1]


def key(queue, suffix=""):
    return f"__pressure__:{queue}{suffix}"


def keys(queue):
    return sorted(SERVER.scan_iter(key(queue) + "*", count=1000))


def set_bound(queue, bound):
    """As the operator does it."""
    text = "\n".join(open(os.path.join(SCRIPTS, f"{name}.lua")).read() for name in ("shared", "setbound"))
    SERVER.eval(text, len(SUFFIXES), *(key(queue, suffix) for suffix in SUFFIXES), bound)


def until(condition):
    deadline = time.time() + PATIENCE
    while not condition():
        if time.time() > deadline:
            return False
        time.sleep(0.005)
    return True


def waits(command, number=1):
    """Whether so many connections sleep in this command."""
    return until(lambda: sum(
        "b" in client["flags"] and client["cmd"] == command for client in SERVER.client_list()) >= number)


numbers = iter(range(1_000_000))


def fresh(bound, creator=None):
    queue = f"q{next(numbers)}"
    assert code(creator(queue)) == 0 if creator else code(ours("create", queue, "--bound", bound)) == 0
    return queue


def lines(name, count):
    return [f"{name}/{number}" for number in range(count)]


def transfers():
    for bound in (1, 5, 0):
        for what, put, get, close in (
                (f"{KIND} to lockkeeper", theirs, ours, theirs), (f"lockkeeper to {KIND}", ours, theirs, ours)):
            queue = fresh(bound)
            sent, begun = lines("x", 1000), time.time()
            consumer = get("get", queue)
            putting = code(put("put", queue, stdin="\n".join(sent) + "\n"))
            closing = code(close("close", queue))
            got, getting = end(consumer)
            counted = [int(SERVER.get(key(queue, f":stats:{side}_messages")) or 0) for side in ("produced", "consumed")]
            so = got == sent and (putting, closing, getting) == (0, 0, 0)
            code(ours("delete", queue))
            yield what, bound, so, time.time() - begun, counted


def crowd(changes):
    """Two producers and two consumers, one of each kind."""
    queue, count, longest = fresh(3), 400, 0
    consumers = [theirs("get", queue), ours("get", queue)]
    producers = [
        side("put", queue, stdin="\n".join(lines(name, count)) + "\n")
        for side, name in ((theirs, "a"), (ours, "b"))]
    while any(process.talk.is_alive() for process in producers):
        if changes:
            set_bound(queue, random.randrange(1, 7))
        longest = max(longest, SERVER.llen(key(queue)))
        time.sleep(0.002)
    put = [code(process) for process in producers]
    closed = code((theirs if changes else ours)("close", queue))
    got = [end(process) for process in consumers]
    everything = [line for out, _ in got for line in out]
    in_order = all(
        list(of) == sorted(of)
        for out, _ in got for name in "ab"
        for of in [[int(line.split("/")[1]) for line in out if line.startswith(name)]])
    is_all = sorted(everything) == sorted(lines("a", count) + lines("b", count))
    code((ours if changes else theirs)("delete", queue))
    ended = put == [0, 0] and closed == 0 and all(c == 0 for _, c in got)
    return is_all and in_order and ended and keys(queue) == [], longest, [len(out) for out, _ in got]


def steps():
    """What, and whether it was so."""
    queue = fresh(2, lambda name: theirs("create", name, 2))
    yield "a queue it made is whole to us, and it can't be made twice", (
        code(ours("length", queue)) == 0 and code(ours("create", queue)) == 82 and code(theirs("create", queue, 1)) == 82)
    yield "what each puts the other counts", (
        code(theirs("put", queue, stdin="x\n")) == 0 and code(ours("put", queue, stdin="y\n")) == 0
        and end(theirs("length", queue))[0] == end(ours("length", queue))[0] == ["2"])
    yield "full, ours is refused", code(ours("put", queue, "--no-wait", stdin="z\n")) == REFUSED
    if KIND == "pressure-python":
        yield "full, its put_nowait is refused", code(theirs("try-put", queue, "z")) == REFUSED
    waiter = theirs("put", queue, stdin="z\n")
    yield "its put waits for room, and ours is told that it is in use", (
        waits("brpop") and code(ours("put", queue, "--no-wait", stdin="w\n")) == REFUSED)
    yield "a raised bound wakes it", set_bound(queue, 3) is None and code(waiter) == 0
    set_bound(queue, 2)
    waiter = ours("put", queue, stdin="w\n")
    yield "over a lowered bound ours waits, until it has got two", (
        waits("blmove") and [end(ours("get", queue, "--count", 1))[0], end(ours("get", queue, "--count", 1))[0]] == [["x"], ["y"]]
        and code(waiter) == 0)
    yield "it closes; ours can neither put nor close", (
        code(theirs("close", queue)) == 0 and code(ours("put", queue, stdin="v\n")) == CLOSED
        and code(ours("close", queue)) == CLOSED)
    yield "nor can it", code(theirs("put", queue, stdin="v\n")) == CLOSED and code(theirs("close", queue)) == CLOSED
    yield "ours gets the rest and ends", end(ours("get", queue)) == (["z", "w"], 0)
    yield "it deletes, and no key is left", code(theirs("delete", queue)) == 0 and keys(queue) == []
    yield "what is gone is missing to both", all(
        code(process) == MISSING for side in (ours, theirs)
        for process in (side("put", queue, stdin="x\n"), side("get", queue), side("close", queue), side("delete", queue)))

    queue = fresh(1)
    waiter = theirs("get", queue)
    yield "it waits for an element, and ours is told that it is in use", (
        waits("brpop") and code(ours("get", queue, "--no-wait")) == REFUSED)
    yield "ours closes: it ends", code(ours("close", queue)) == 0 and code(waiter) == 0
    yield "ours deletes, and no key is left", code(ours("delete", queue)) == 0 and keys(queue) == []

    for what, begin, sleeping in (
            ("for an element", lambda q: theirs("get", q), "brpop"),
            ("for room", lambda q: theirs("put", q, stdin="y\n"), "brpop")):
        queue = fresh(1)
        if what == "for room":
            code(ours("put", queue, stdin="x\n"))
        waiter = begin(queue)
        yield f"it waits {what}, ours deletes: it ends, and no key is left", (
            waits(sleeping) and code(ours("delete", queue)) == 0
            and code(waiter) != "never ended" and keys(queue) == [])
    for what, begin in (
            ("for an element", lambda q: ours("get", q)), ("for room", lambda q: ours("put", q, stdin="y\n"))):
        queue = fresh(1)
        if what == "for room":
            code(theirs("put", queue, stdin="x\n"))
        waiter = begin(queue)
        yield f"ours waits {what}, it deletes: ours is told that it is gone", (
            waits("blmove", 2) and code(theirs("delete", queue)) == 0
            and code(waiter) == MISSING and keys(queue) == [])
    queue = fresh(1)
    waiter = ours("get", queue)
    yield "ours waits for an element, it closes: ours ends", (
        waits("blmove", 2) and code(theirs("close", queue)) == 0 and code(waiter) == 0)
    code(ours("delete", queue))
    if KIND == "pressure-python":
        queue = fresh(1)
        yield "its get_nowait of an empty queue returns None", code(theirs("try-get", queue)) == REFUSED
        code(ours("delete", queue))


def quirks():
    """What it does by itself that the text has otherwise."""
    queue = fresh(1)
    code(ours("put", queue, stdin="x\n"))
    code(ours("close", queue))
    end(theirs("get", queue))
    yield "counts an element that it gets from a closed queue", SERVER.exists(key(queue, ":stats:consumed_messages"))
    yield "leaves `:not_full` with an element after that", SERVER.llen(key(queue, ":not_full")) == 1
    code(ours("delete", queue))
    queue = fresh(5)
    put, stop = at_hand(queue)
    put("a", 1)
    code(ours("get", queue, "--count", 1))
    set_bound(queue, 1)
    put("b", 1)
    put("c", 2)
    yield "puts over a bound that was lowered since it connected", SERVER.llen(key(queue)) > 1
    stop()

    queue = fresh(1)
    put, stop = at_hand(queue)
    put("a", 1)
    set_bound(queue, 5)
    put("b", 2)
    yield "leaves `:not_full` empty where the bound was raised since it connected", (
        SERVER.llen(key(queue, ":not_full")) == 0)
    stop()


def at_hand(queue):
    """A producer that stays connected: how to let it put, and how to end it."""
    process = subprocess.Popen([*DRIVER, "put", queue], stdin=subprocess.PIPE, text=True)

    def put(element, length):
        process.stdin.write(element + "\n")
        process.stdin.flush()
        # The element was put, or the producer waits for capacity.
        deadline = time.time() + 2
        while time.time() < deadline and not (
                SERVER.llen(key(queue)) >= length and SERVER.llen(key(queue, ":producer_free"))):
            time.sleep(0.01)

    def stop():
        process.kill()
        process.stdin.close()
        process.wait()
        SERVER.delete(*keys(queue))

    return put, stop


def main():
    version = subprocess.run([LOCKKEEPER, "--version"], capture_output=True, text=True).stdout.strip()
    print(f"{KIND} {COMMIT}; {version}; Redis {SERVER.info('server')['redis_version']}\n")
    failed = 0
    print("1000 elements each, created, closed and deleted:\n")
    print("| | bound | all, in order | seconds | counted as put, got |\n| --- | --- | --- | --- | --- |")
    for what, bound, so, seconds, counted in transfers():
        failed += not so
        print(f"| {what} | {bound} | {'yes' if so else 'NO'} | {seconds:.1f} | {counted[0]}, {counted[1]} |", flush=True)
    print("\nTwo producers and two consumers, one of each kind, 400 elements a producer:\n")
    print("| | all, each producer's in order, no key left | got by each | longest |\n| --- | --- | --- | --- |")
    for changes in (False, True):
        so, longest, shares = crowd(changes)
        failed += not so
        bound = "bound changed all the time, 1 to 6" if changes else "bound 3"
        print(f"| {bound} | {'yes' if so else 'NO'} | {shares[0]}, {shares[1]} | {longest} |", flush=True)
    print("\n| step by step | |\n| --- | --- |")
    for what, so in steps():
        failed += not so
        print(f"| {what} | {'yes' if so else 'NO'} |", flush=True)
    print(f"\n| {KIND} by itself | |\n| --- | --- |")
    for what, so in quirks():
        print(f"| {what} | {'yes' if so else 'no'} |", flush=True)
    for process in started:
        if process.poll() is None:
            process.kill()
    sys.exit(failed and "they disagree: see above")


main()
