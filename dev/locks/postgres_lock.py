#!/usr/bin/python3
"""Runs a command under an advisory lock of PostgreSQL: postgres_lock.py WAIT NAME COMMAND...

The session holds the lock. Exits with 75 if it is not free within WAIT seconds. Connects as libpq
does (PGHOST, ...). For dev/prove.
"""
import subprocess
import sys

import psycopg2
import psycopg2.errors


def main():
    wait, name, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    session = psycopg2.connect("")
    session.autocommit = True
    with session.cursor() as cursor:
        # 0 would be no limit.
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", (f"{max(1, int(wait * 1000))}ms",))
        try:
            cursor.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (name,))
        except psycopg2.errors.LockNotAvailable:
            return 75
        # The command ends with this program, because the session does.
        code = subprocess.call(["setpriv", "--pdeathsig", "KILL", *command])
    session.close()
    return code


sys.exit(main())
