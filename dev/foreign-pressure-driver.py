"""One operation of pressure-python's own class, for dev/foreign-pressure.py. Arguments:
checkout, verb, queue, more. Ends with 0, or with what lockkeeper would end with: 75 full,
empty or in use, 81 missing, 82 exists, 83 closed.

Written for Python 2, the module compares the server's bytes with its own text: so it is
given redis-py's decode_responses, by an argument that it passes on. Nothing else differs."""

import os
import sys
import urllib.parse
import warnings

warnings.simplefilter("ignore", SyntaxWarning)
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import pressure

VERB, NAME, MORE = sys.argv[2], sys.argv[3], sys.argv[4:]
URL = urllib.parse.urlsplit(os.environ["REDIS_URL"])


def main():
    queue = pressure.PressureQueue(
        NAME, host=URL.hostname, port=URL.port, username=URL.username, password=URL.password,
        decode_responses=True)
    if VERB == "create":
        queue.create(int(MORE[0]))
    elif VERB == "put":
        for line in sys.stdin:
            queue.put(line.rstrip("\n"))
    elif VERB == "get":
        while True:
            try:
                element = queue.get()
            except pressure.QueueClosedError:
                return 0
            print(element, flush=True)
    elif VERB == "try-put":
        queue.put(MORE[0], block=False)
    elif VERB == "try-get":
        element = queue.get(block=False)
        if element is None:
            return 75
        print(element)
    elif VERB == "length":
        print(queue.qsize())
    elif VERB == "closed":
        print(bool(queue.closed()))
    elif VERB == "close":
        queue.close()
    elif VERB == "delete":
        queue.delete()
    return 0


try:
    code = main()
except (pressure.QueueFullError, pressure.QueueInUseError):
    code = 75
except pressure.QueueDoesNotExistError:
    code = 81
except pressure.QueueAlreadyExistsError:
    code = 82
except pressure.QueueClosedError:
    code = 83
sys.exit(code)
