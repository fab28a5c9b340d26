"""Exit codes, and the exceptions that carry them to the top.

KarpoolExit
├── Failed         1: it went wrong
└── DoesNotFit     3: the question was answered, and the answer is no
"""

FAILURE = 1
NO = 3
INTERRUPTED = 130


class KarpoolExit(Exception):
    code = FAILURE


class CommandFailed(KarpoolExit):
    code = FAILURE


class DoesNotFit(KarpoolExit):
    code = NO
