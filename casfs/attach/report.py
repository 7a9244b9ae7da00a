"""The hook program: `report.py AGENT` spools the event on stdin, then tells the daemon.

A copy of it stands in a store's `hooks/`, and agents run it as `python3 -IS`, several times for
each tool call, so it imports built-in modules alone (8 ms in all) and nothing of casfs, whose
version may change meanwhile. It must never disturb its agent: it prints only what the daemon has
for the agent (the comments of a review), ends with 0 whatever happens, and waits WAIT_S at most.
Its environment, which holds the person's keys, is not recorded.

The event is durable before the daemon is told. Where the disk is full it goes to the daemon as it
is; where the daemon is away, too, the times of `missed` say when events were lost, which takes no
room.
"""

import _socket
import posix
import sys
import time

WAIT_S = 0.3
MAX_EVENT = 64 << 20  # a tool may have printed anything: the rest is cut, and the reader says so
MAX_ANSWER = 1 << 20
MAX_SENT = 16 << 20  # to the daemon, of an event that could not be spooled
SHELLS = (b"sh", b"dash", b"bash", b"zsh", b"fish", b"busybox")
MODE = 0o600
FORGOTTEN_NS = 7 * 86_400 * 1_000_000_000  # after which lost events are not mentioned any more


def report(agent: str, hooks: str) -> None:
    event = header(agent) + read_input()
    spool = hooks + "/../spool"
    try:
        request = b'{"op":"session_event","file":"%s"}' % write(spool, event)
        is_spooled = True
    except OSError:
        request = b'{"op":"session_event","hex":"%s"}' % event[:MAX_SENT].hex().encode()
        is_spooled = False
    if tell(hooks, request + b"\n"):
        return
    if not is_spooled:
        note_missed(spool)
    if agent_begins(event):
        start_daemon(hooks)


def header(agent: str) -> bytes:
    """Returns the line before the agent's own JSON."""
    line = b"casfs 1 %s %d %d" % (agent.encode(), time.time_ns() // 1_000_000, agent_pid())
    try:
        # In a container the agent has another pid than where the daemon is.
        return b"%s %s\n" % (line, posix.readlink(b"/proc/self/ns/pid"))
    except OSError:
        return line + b"\n"


def agent_pid() -> int:
    """Returns the pid of the agent: the nearest ancestor process that is not a shell."""
    pid = posix.getppid()
    for _ in range(8):
        try:
            stat = read_file(f"/proc/{pid}/stat")
        except OSError:
            return pid
        name = stat[stat.index(b"(") + 1 : stat.rindex(b")")]
        if name not in SHELLS:
            return pid
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return pid


def read_input() -> bytes:
    pieces = []
    size = 0
    while size < MAX_EVENT and (piece := posix.read(0, 1 << 20)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def read_file(path: str) -> bytes:
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return posix.read(fd, 4096)
    finally:
        posix.close(fd)


def write(spool: str, event: bytes) -> bytes:
    """Writes a file of the spool, durably; returns its name, by which the files have an order.

    The clock of the boot is in front: another one may be set back between two events."""
    boot = read_file("/proc/sys/kernel/random/boot_id")[:8]
    moment = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    name = b"%s-%020d-%d" % (boot, moment, posix.getpid())
    temp = spool.encode() + b"/." + name
    try:
        fd = posix.open(temp, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, MODE)
        try:
            while event:
                event = event[posix.write(fd, event) :]
            posix.fsync(fd)
        finally:
            posix.close(fd)
        posix.rename(temp, spool.encode() + b"/" + name)
    except OSError:
        posix.unlink(temp)
        raise
    folder = posix.open(spool, posix.O_RDONLY | posix.O_CLOEXEC)
    posix.fsync(folder)
    posix.close(folder)
    return name


def note_missed(spool: str) -> None:
    """Notes in the access time of `missed` when the first event was lost, in the other the last."""
    path = spool + "/missed"
    now_ns = time.time_ns()
    known = posix.stat(path)
    is_recent = known.st_mtime_ns > now_ns - FORGOTTEN_NS
    first = known.st_atime_ns if is_recent else now_ns
    posix.utime(path, ns=(first, now_ns))


def tell(hooks: str, request: bytes) -> bool:
    """Returns whether the daemon has the request. Waits until it has looked at the directory."""
    try:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.settimeout(WAIT_S)
        path = posix.readlink(hooks + "/socket")
        # Where no daemon has run yet, another user can have made a directory of this name in /tmp.
        if posix.stat(path.rpartition("/")[0]).st_uid != posix.getuid():
            return False
        connection.connect(path)
    except OSError:
        return False
    try:
        while request:
            request = request[connection.send(request) :]
        answer = read_answer(connection)
    except OSError:
        return True  # the daemon has ended meanwhile; it takes the event when it starts
    print_for_agent(answer)
    return True


def read_answer(connection: _socket.socket) -> bytes:
    """Returns what comes in time: what is to be printed comes before the look at the directory."""
    answer = b""
    try:
        while len(answer) < MAX_ANSWER and (piece := connection.recv(1 << 16)):
            answer += piece
    except TimeoutError:
        pass  # it is late: the tree of this moment will say so
    return answer


def print_for_agent(answer: bytes) -> None:
    """Prints what the daemon's answer has in hexadecimal digits, since no parser is loaded here."""
    digits, end, _ = answer.partition(b'"print":"')[2].partition(b'"')
    if end:
        output = bytes.fromhex(digits.decode("ascii"))
        while output:
            output = output[posix.write(1, output) :]


def agent_begins(event: bytes) -> bool:
    return b'"SessionStart"' in event


def start_daemon(hooks: str) -> None:
    """Starts a daemon by the script that `casfs attach` has left, with no environment."""
    null = posix.open("/dev/null", posix.O_RDWR)
    actions = [(posix.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    program = hooks + "/start-daemon"
    posix.posix_spawn(program, [program], {}, file_actions=actions, setsid=True)


if __name__ == "__main__":
    try:  # noqa: SIM105  # contextlib takes a millisecond
        report(sys.argv[1], sys.argv[0].rpartition("/")[0])
    except BaseException:
        pass
    posix._exit(0)
