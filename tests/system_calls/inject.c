/* A library to load before all others (LD_PRELOAD): one system call of a process fails, or ends the process.
 *
 * Only calls on a path or descriptor whose path holds a word count, or on a socket or pipe if the word is "socket:" or
 * "pipe:". They are counted by name, in the process that `inject_arm` was called in, or, if the variable INJECT says
 * "call:number:error:word:who:mark", in each process whose command line holds `who`. If that is "--index K", it is also
 * the K-th fork, from 0, of a process whose command line holds "--fork". The first one that reaches the number makes the
 * file `mark`, so that no other does the same. The error -1 kills the process before the call.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KILL = -1, LENGTH = 512 };

static char wanted[32], word[LENGTH], mark[LENGTH], call[32], holds[LENGTH];
static long number, nth, forks, fork_meant = -1;
static int failure, armed, error;
static _Atomic long count;

/* Count the calls of `call` whose path holds `holds`; the one with this number, from 1, fails with `error`. */
void inject_arm(const char *call, long nth, int error, const char *holds) {
    armed = 0;
    snprintf(wanted, sizeof wanted, "%s", call);
    snprintf(word, sizeof word, "%s", holds);
    number = nth;
    failure = error;
    count = 0;
    armed = 1;
}

/* Return how many calls were counted, and count no more. */
long inject_disarm(void) {
    armed = 0;
    return count;
}

__attribute__((constructor)) static void from_environment(void) {
    char line[4 * LENGTH], command[8192] = "", who[LENGTH];
    const char *text = getenv("INJECT");
    if (text == NULL || strlen(text) >= sizeof line)
        return;
    strcpy(line, text);
    if (sscanf(line, "%31[^:]:%ld:%d:%511[^:]:%511[^:]:%511s", call, &nth, &error, holds, who, mark) != 6)
        return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY);
    long length = file < 0 ? 0 : syscall(SYS_read, file, command, sizeof command - 1);
    syscall(SYS_close, file);
    for (long i = 0; i < length; i++)
        command[i] = command[i] ? command[i] : ' ';
    if (strcmp(holds, "socket") == 0)
        strcpy(holds, "socket:");
    if (strstr(command, who) != NULL)
        inject_arm(call, nth, error, holds);
    else if (strstr(command, " --fork ") != NULL)
        sscanf(who, "--index %ld", &fork_meant);
}

/* Return whether this call is the one; if it is to kill, do not return. */
static int due(const char *call, const char *path) {
    if (!armed || path == NULL || strcmp(call, wanted) != 0 || strstr(path, word) == NULL || ++count != number)
        return 0;
    if (mark[0]) {
        int file = (int)syscall(SYS_openat, AT_FDCWD, mark, O_CREAT | O_EXCL | O_WRONLY, 0600);
        if (file < 0)
            return 0;
        syscall(SYS_close, file);
    }
    if (failure == KILL)
        kill(getpid(), SIGKILL);
    errno = failure;
    return 1;
}

static int due_at(const char *call, int descriptor) {
    char link[64], path[LENGTH];
    if (!armed || strcmp(call, wanted) != 0 || descriptor < 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = '\0';
    return due(call, path);
}

#define REAL(name) (__extension__({ static __typeof__(name) *real; real ? real : (real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)); }))

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

pid_t fork(void) {
    pid_t child = REAL(fork)();
    if (child == 0 && forks == fork_meant)
        inject_arm(call, nth, error, holds);
    forks++;
    return child;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                      \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = mode_of(flags, rest);                                                                            \
        va_end(rest);                                                                                                  \
        return due("open", path) ? -1 : REAL(name)(path, flags, mode);                                                 \
    }
#define OPENAT(name)                                                                                                   \
    int name(int folder, const char *path, int flags, ...) {                                                          \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = mode_of(flags, rest);                                                                            \
        va_end(rest);                                                                                                  \
        return due("open", path) ? -1 : REAL(name)(folder, path, flags, mode);                                         \
    }
#define WRAP(type, name, check, parameters, arguments)                                                                 \
    type name parameters { return check ? (type)-1 : REAL(name) arguments; }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
extern int shm_open(const char *, int, mode_t);
extern int flock(int, int);
extern int rename(const char *, const char *);
extern void *mmap(void *, size_t, int, int, int, off_t);
extern void *mmap64(void *, size_t, int, int, int, off64_t);

WRAP(int, shm_open, due("open", name), (const char *name, int flags, mode_t mode), (name, flags, mode))
/* These two return their error. */
int posix_fallocate(int file, off_t from, off_t size) {
    return due_at("ftruncate", file) ? errno : REAL(posix_fallocate)(file, from, size);
}
int posix_fallocate64(int file, off64_t from, off64_t size) {
    return due_at("ftruncate", file) ? errno : REAL(posix_fallocate64)(file, from, size);
}

WRAP(int, ftruncate, due_at("ftruncate", file), (int file, off_t size), (file, size))
WRAP(int, ftruncate64, due_at("ftruncate", file), (int file, off64_t size), (file, size))
WRAP(int, truncate, due("ftruncate", path), (const char *path, off_t size), (path, size))
WRAP(int, truncate64, due("ftruncate", path), (const char *path, off64_t size), (path, size))
WRAP(void *, mmap, due_at("mmap", file), (void *at, size_t size, int use, int how, int file, off_t from),
     (at, size, use, how, file, from))
WRAP(void *, mmap64, due_at("mmap", file), (void *at, size_t size, int use, int how, int file, off64_t from),
     (at, size, use, how, file, from))
WRAP(ssize_t, write, due_at("write", file), (int file, const void *data, size_t size), (file, data, size))
WRAP(ssize_t, pwrite, due_at("write", file), (int file, const void *data, size_t size, off_t at),
     (file, data, size, at))
WRAP(ssize_t, pwrite64, due_at("write", file), (int file, const void *data, size_t size, off64_t at),
     (file, data, size, at))
WRAP(ssize_t, send, due_at("write", file), (int file, const void *data, size_t size, int flags),
     (file, data, size, flags))
WRAP(ssize_t, sendmsg, due_at("write", file), (int file, const struct msghdr *message, int flags),
     (file, message, flags))
WRAP(int, fsync, due_at("fsync", file), (int file), (file))
WRAP(int, fdatasync, due_at("fsync", file), (int file), (file))
WRAP(int, flock, due_at("flock", file), (int file, int how), (file, how))
WRAP(int, rename, due("rename", to), (const char *from, const char *to), (from, to))
WRAP(int, mkdir, due("mkdir", path), (const char *path, mode_t mode), (path, mode))
WRAP(int, unlink, due("unlink", path), (const char *path), (path))
WRAP(int, socket, due("socket", "socket:"), (int family, int kind, int protocol), (family, kind, protocol))
WRAP(int, accept4, due_at("accept", file), (int file, struct sockaddr *peer, socklen_t *size, int flags),
     (file, peer, size, flags))
