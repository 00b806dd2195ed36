/* What C achieves between processes on this machine: a ring in shared memory, two ping-pongs, a copy, a placement probe.
 *
 *   limits ring COPY(0|1) SIZE SLOTS READERS SECONDS CORES   one writer, every reader gets every message
 *   limits spin SIZE COUNT CORES                             half round trip, both sides poll
 *   limits eventfd SIZE COUNT CORES                          half round trip, both sides sleep in read(2)
 *   limits futex SIZE COUNT CORES                            half round trip, both sides sleep in futex(2)
 *   limits probe COUNT CORES                                 half round trip of one word on one cache line
 *   limits memcpy SIZE SECONDS CORES                         one core's copy from private to private memory
 *
 * CORES is a list like 0,1 (writer first, then the readers) or - to leave placement to the kernel. Each call prints one
 * line of JSON. Readers are forked processes; the segment is unlinked before they start, so nothing can be left behind.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#endif

enum { MAX_READERS = 64, POLLS_BEFORE_YIELD = 20000, LINE = 64, HEAD = 16 };
enum { PER_BLOCK = 16 }; /* round trips timed as one: a clock reading costs as much as a fast one */
enum { BODY = 0, WARM_END = 1, END = 2 }; /* first byte of a message */

typedef struct {
    _Atomic uint64_t consumed;
    uint64_t count, first_ns, last_ns; /* filled when the reader has seen the end */
    char pad[LINE - 32];
} reader_t;

typedef struct {
    _Atomic uint64_t ready;
    char pad[LINE - 8];
    reader_t readers[MAX_READERS];
} control_t;

typedef struct {
    _Atomic uint64_t sequence; /* of the message in the slot, plus one */
    uint64_t size;
    unsigned char payload[];
} slot_t;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Put this process on the index-th core of the list; a list "-" pins nothing. */
static void pin(const char *cores, int index) {
    if (cores[0] == '-') return;
    while (index-- > 0) {
        cores = strchr(cores, ',');
        if (!cores) {
            errno = EINVAL;
            fail("fewer cores than processes");
        }
        cores++;
    }
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(cores), &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
#endif
}

static void *segment(size_t bytes) {
    char name[64];
    snprintf(name, sizeof name, "/ipcb-limits-%d", (int)getpid());
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0) fail("shm_open");
    if (shm_unlink(name)) fail("shm_unlink");
    if (ftruncate(fd, (off_t)bytes)) fail("ftruncate");
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("mmap");
    memset(memory, 0, bytes);
    close(fd);
    return memory;
}

static void *private_memory(size_t bytes) {
    void *memory = aligned_alloc(LINE, (bytes + LINE) / LINE * LINE);
    if (!memory) fail("aligned_alloc");
    memset(memory, 0, bytes);
    return memory;
}

static pid_t fork_or_fail(void) {
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    return pid;
}

static void reap(int children) {
    while (children-- > 0) {
        int status;
        if (wait(&status) < 0) fail("wait");
        if (status) {
            fprintf(stderr, "a reader failed\n");
            exit(1);
        }
    }
}

/* Load until the word is at least `wanted`: poll, and offer the core to others after a while. */
static inline uint64_t await(_Atomic uint64_t *word, uint64_t wanted) {
    for (;;) {
        for (int polls = 0; polls < POLLS_BEFORE_YIELD; polls++) {
            uint64_t value = atomic_load_explicit(word, memory_order_acquire);
            if (value >= wanted) return value;
        }
        sched_yield();
    }
}

/* ---- ring ---- */

typedef struct {
    control_t *control;
    char *slots;
    size_t slot_bytes, size;
    uint64_t slot_count, sequence, room;
    int readers, copy;
} ring_t;

static inline slot_t *slot_at(const ring_t *ring, uint64_t sequence) {
    return (slot_t *)(ring->slots + sequence % ring->slot_count * ring->slot_bytes);
}

static void put(ring_t *ring, const unsigned char *message) {
    if (ring->sequence >= ring->room) {
        uint64_t slowest = UINT64_MAX;
        for (int i = 0; i < ring->readers; i++) {
            uint64_t done = await(&ring->control->readers[i].consumed, ring->sequence + 1 - ring->slot_count);
            if (done < slowest) slowest = done;
        }
        ring->room = slowest + ring->slot_count;
    }
    slot_t *slot = slot_at(ring, ring->sequence);
    memcpy(slot->payload, message, ring->size);
    slot->size = ring->size;
    atomic_store_explicit(&slot->sequence, ++ring->sequence, memory_order_release);
}

/* Read up to and with the message whose first byte is `marker`; return how many. */
static uint64_t get_until(ring_t *ring, reader_t *me, int marker, unsigned char *mine) {
    uint64_t count = 0, sequence = ring->sequence;
    int first_byte;
    me->first_ns = 0;
    do {
        slot_t *slot = slot_at(ring, sequence);
        atomic_store_explicit(&me->consumed, sequence, memory_order_release);
        await(&slot->sequence, ++sequence);
        if (ring->copy) {
            memcpy(mine, slot->payload, slot->size);
            first_byte = mine[0];
        } else {
            first_byte = *(volatile unsigned char *)slot->payload;
        }
        if (!count++) me->first_ns = now_ns();
    } while (first_byte != marker);
    me->last_ns = now_ns();
    atomic_store_explicit(&me->consumed, sequence, memory_order_release);
    ring->sequence = sequence;
    return count;
}

static void put_for(ring_t *ring, double seconds, int marker, unsigned char *message) {
    uint64_t batch = ring->size >= 1 << 18 ? 1 : (1u << 18) / (ring->size + 1024);
    uint64_t stop = now_ns() + (uint64_t)(seconds * 1e9);
    message[0] = BODY;
    do {
        for (uint64_t i = 0; i < batch; i++) put(ring, message);
    } while (now_ns() < stop);
    message[0] = (unsigned char)marker;
    put(ring, message);
}

static void ring_reader(ring_t *ring, int index) {
    reader_t *me = &ring->control->readers[index];
    unsigned char *mine = private_memory(ring->size);
    atomic_fetch_add(&ring->control->ready, 1);
    get_until(ring, me, WARM_END, mine);
    me->count = get_until(ring, me, END, mine);
}

/* Messages per second that every reader got, from the first receipt to the slowest reader's last. */
static double rate_of(const ring_t *ring, uint64_t sent) {
    uint64_t first = UINT64_MAX, last = 0;
    for (int i = 0; i < ring->readers; i++) {
        const reader_t *reader = &ring->control->readers[i];
        if (reader->count != sent) {
            fprintf(stderr, "reader %d got %llu of %llu\n", i, (unsigned long long)reader->count, (unsigned long long)sent);
            exit(1);
        }
        if (reader->first_ns < first) first = reader->first_ns;
        if (reader->last_ns > last) last = reader->last_ns;
    }
    return (double)(sent - 1) / ((double)(last - first) / 1e9);
}

static void run_ring(int copy, size_t size, uint64_t slots, int readers, double seconds, const char *cores) {
    if (!size || !slots || readers < 1 || readers > MAX_READERS) {
        errno = EINVAL;
        fail("size, slots or readers");
    }
    ring_t ring = {.size = size, .slot_count = slots, .room = slots, .readers = readers, .copy = copy};
    ring.slot_bytes = (HEAD + size + LINE - 1) / LINE * LINE;
    ring.control = segment(sizeof(control_t) + ring.slot_bytes * slots);
    ring.slots = (char *)(ring.control + 1);
    for (int i = 0; i < readers; i++) {
        if (fork_or_fail()) continue;
        pin(cores, i + 1);
        ring_reader(&ring, i);
        _exit(0);
    }
    pin(cores, 0);
    unsigned char *message = private_memory(size);
    await(&ring.control->ready, (uint64_t)readers);
    put_for(&ring, seconds / 5, WARM_END, message);
    uint64_t before = ring.sequence;
    put_for(&ring, seconds, END, message);
    uint64_t sent = ring.sequence - before;
    reap(readers);
    printf("{\"what\": \"ring\", \"copy\": %s, \"size_bytes\": %zu, \"slots_count\": %llu, \"readers_count\": %d, "
           "\"messages_count\": %llu, \"messages_per_s\": %.1f}\n",
           copy ? "true" : "false", size, (unsigned long long)slots, readers, (unsigned long long)sent,
           rate_of(&ring, sent));
}

/* ---- ping-pongs: side 0 (the parent) measures, side 1 answers ---- */

typedef struct {
    _Atomic uint64_t count;
    char pad[LINE - 8];
    unsigned char payload[];
} post_t;

typedef struct {
    post_t *posts[2]; /* towards side 1, towards side 0 */
    int events[2];
    size_t size;
    unsigned char *mine;
    void (*send)(void *, int, uint64_t), (*receive)(void *, int, uint64_t);
} pair_t;

static void spin_send(void *state, int to, uint64_t turn) {
    pair_t *pair = state;
    memcpy(pair->posts[to]->payload, pair->mine, pair->size);
    atomic_store_explicit(&pair->posts[to]->count, turn, memory_order_release);
}

static void spin_receive(void *state, int at, uint64_t turn) {
    pair_t *pair = state;
    await(&pair->posts[at]->count, turn);
    memcpy(pair->mine, pair->posts[at]->payload, pair->size);
}

#ifdef __linux__
static void event_send(void *state, int to, uint64_t turn) {
    pair_t *pair = state;
    uint64_t one = 1;
    (void)turn;
    memcpy(pair->posts[to]->payload, pair->mine, pair->size);
    if (write(pair->events[to], &one, sizeof one) != sizeof one) fail("write");
}

/* The lower half of the count is the word; whoever waits says so in the next one, so that nobody is woken in vain. */
static void futex_send(void *state, int to, uint64_t turn) {
    pair_t *pair = state;
    _Atomic uint32_t *sleeps = (_Atomic uint32_t *)pair->posts[to]->pad;
    memcpy(pair->posts[to]->payload, pair->mine, pair->size);
    atomic_store(&pair->posts[to]->count, turn);
    if (atomic_exchange(sleeps, 0)) syscall(SYS_futex, &pair->posts[to]->count, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void futex_receive(void *state, int at, uint64_t turn) {
    pair_t *pair = state;
    _Atomic uint32_t *sleeps = (_Atomic uint32_t *)pair->posts[at]->pad;
    while (atomic_load(&pair->posts[at]->count) < turn) {
        atomic_store(sleeps, 1);
        if (atomic_load(&pair->posts[at]->count) < turn)
            syscall(SYS_futex, &pair->posts[at]->count, FUTEX_WAIT, (uint32_t)(turn - 1), NULL, NULL, 0);
    }
    memcpy(pair->mine, pair->posts[at]->payload, pair->size);
}

static void event_receive(void *state, int at, uint64_t turn) {
    pair_t *pair = state;
    uint64_t any;
    (void)turn;
    if (read(pair->events[at], &any, sizeof any) != sizeof any) fail("read");
    memcpy(pair->mine, pair->posts[at]->payload, pair->size);
}
#endif

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void run_pair(const char *what, pair_t *pair, size_t size, uint64_t count, const char *cores) {
    size_t post_bytes = sizeof(post_t) + (size + LINE) / LINE * LINE * 2;
    char *memory = segment(2 * post_bytes);
    uint64_t blocks = count / PER_BLOCK + 1, warm = blocks / 5, total = (warm + blocks) * PER_BLOCK, turn = 1;
    uint32_t *blocks_ns = private_memory(blocks * sizeof *blocks_ns);
    pair->size = size;
    pair->posts[0] = (post_t *)memory;
    pair->posts[1] = (post_t *)(memory + post_bytes);
    pair->mine = private_memory(size + 1);
    pid_t child = fork_or_fail();
    pin(cores, child ? 0 : 1);
    if (!child) {
        for (; turn <= total; turn++) {
            pair->receive(pair, 0, turn);
            pair->send(pair, 1, turn);
        }
        _exit(0);
    }
    uint64_t start = now_ns();
    for (uint64_t block = 0; block < warm + blocks; block++) {
        for (int i = 0; i < PER_BLOCK; i++, turn++) {
            pair->send(pair, 0, turn);
            pair->receive(pair, 1, turn);
        }
        uint64_t end = now_ns(), took = end - start;
        if (block >= warm) blocks_ns[block - warm] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
        start = end;
    }
    reap(1);
    qsort(blocks_ns, blocks, sizeof *blocks_ns, ascending);
    printf("{\"what\": \"%s\", \"size_bytes\": %zu, \"round_trips_count\": %llu, \"half_p50_ns\": %.1f}\n", what, size,
           (unsigned long long)(blocks * PER_BLOCK), blocks_ns[blocks / 2] / 2.0 / PER_BLOCK);
}

/* Median over blocks of round trips, each block timed as a whole: a clock reading costs as much as one of them, and a
 * block in which the kernel took the core away must not count. */
static void run_probe(uint64_t count, const char *cores) {
    enum { BLOCKS = 51 };
    uint32_t blocks_ns[BLOCKS];
    uint64_t in_block = count / BLOCKS + 1, turn = 1;
    _Atomic uint64_t *word = segment(LINE);
    pid_t child = fork_or_fail();
    pin(cores, child ? 0 : 1);
    if (!child) {
        for (; turn <= 2 * in_block * BLOCKS; turn += 2) {
            await(word, turn);
            atomic_store_explicit(word, turn + 1, memory_order_release);
        }
        _exit(0);
    }
    for (int block = 0; block < BLOCKS; block++) {
        uint64_t start = now_ns();
        for (uint64_t i = 0; i < in_block; i++, turn += 2) {
            atomic_store_explicit(word, turn, memory_order_release);
            await(word, turn + 1);
        }
        blocks_ns[block] = (uint32_t)(now_ns() - start);
    }
    reap(1);
    qsort(blocks_ns, BLOCKS, sizeof *blocks_ns, ascending);
    printf("{\"what\": \"probe\", \"half_p50_ns\": %.1f}\n", blocks_ns[BLOCKS / 2] / (double)in_block / 2);
}

static void run_memcpy(size_t size, double seconds, const char *cores) {
    unsigned char *from = private_memory(size), *to = private_memory(size);
    uint64_t batch = size >= 1 << 20 ? 1 : (1u << 20) / (size + 1), copies = 0, took;
    pin(cores, 0);
    memcpy(to, from, size);
    uint64_t start = now_ns();
    do {
        for (uint64_t i = 0; i < batch; i++) {
            from[0] = (unsigned char)i;
            memcpy(to, from, size);
            __asm__ volatile("" : : "r"(to) : "memory"); /* the copy is wanted, though nobody reads it */
        }
        copies += batch;
        took = now_ns() - start;
    } while ((double)took < seconds * 1e9);
    printf("{\"what\": \"memcpy\", \"size_bytes\": %zu, \"bytes_per_s\": %.4g}\n", size,
           (double)copies * (double)size / ((double)took / 1e9));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    pair_t pair = {.send = spin_send, .receive = spin_receive};
    if (!strcmp(what, "ring") && argc == 8) {
        run_ring(atoi(argv[2]), strtoul(argv[3], 0, 10), strtoul(argv[4], 0, 10), atoi(argv[5]), atof(argv[6]), argv[7]);
    } else if (!strcmp(what, "spin") && argc == 5) {
        run_pair(what, &pair, strtoul(argv[2], 0, 10), strtoul(argv[3], 0, 10), argv[4]);
    } else if (!strcmp(what, "eventfd") && argc == 5) {
#ifdef __linux__
        pair = (pair_t){.send = event_send, .receive = event_receive, .events = {eventfd(0, 0), eventfd(0, 0)}};
        if (pair.events[0] < 0 || pair.events[1] < 0) fail("eventfd");
        run_pair(what, &pair, strtoul(argv[2], 0, 10), strtoul(argv[3], 0, 10), argv[4]);
#else
        fprintf(stderr, "eventfd needs Linux\n");
        return 2;
#endif
    } else if (!strcmp(what, "futex") && argc == 5) {
#ifdef __linux__
        pair = (pair_t){.send = futex_send, .receive = futex_receive};
        run_pair(what, &pair, strtoul(argv[2], 0, 10), strtoul(argv[3], 0, 10), argv[4]);
#else
        fprintf(stderr, "futex needs Linux\n");
        return 2;
#endif
    } else if (!strcmp(what, "probe") && argc == 4) {
        run_probe(strtoul(argv[2], 0, 10), argv[3]);
    } else if (!strcmp(what, "memcpy") && argc == 5) {
        run_memcpy(strtoul(argv[2], 0, 10), atof(argv[3]), argv[4]);
    } else {
        fprintf(stderr, "usage: limits ring|spin|eventfd|futex|probe|memcpy ARGUMENTS (see the head of limits.c)\n");
        return 2;
    }
    return 0;
}
