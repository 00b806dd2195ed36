/* Runs the ring of shared memory between threads: one writer, some readers, messages of random sizes, each byte checked.
 *
 *   driver MESSAGES READERS COUNT INLINE_BYTES ARENA_BYTES MOST_BYTES SEED
 *
 * Build it with -fsanitize=thread or -fsanitize=address to have the ring's order and bounds checked, too. It prints how many
 * messages each reader got, and ends with 1 at the first wrong one.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "ring.h"

static RingOut out;
static Ring shape; /* before the first message */
static int64_t messages, most_bytes;
static uint64_t seed;

static uint64_t mixed(uint64_t number) { /* SplitMix64 */
    number += seed * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x9E3779B97F4A7C15);
    number = (number ^ number >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    number = (number ^ number >> 27) * UINT64_C(0x94D049BB133111EB);
    return number ^ number >> 31;
}

static int64_t size_of(uint64_t number) {
    const uint64_t random = mixed(number);
    const int64_t small = (int64_t)(random % 129) < most_bytes ? (int64_t)(random % 129) : most_bytes;
    return random >> 60 ? small : (int64_t)(random % (uint64_t)(most_bytes + 1));
}

static void fail(uint64_t number, const char *what) {
    fprintf(stderr, "message %llu: %s\n", (unsigned long long)number, what);
    exit(1);
}

static void *read_all(void *argument) {
    RingIn in = {.ring = shape, .consumed_offset = (int64_t)(intptr_t)argument};
    for (uint64_t number = 0; number < (uint64_t)messages; number++) {
        ring_finish(&in);
        while (!ring_has_message(&in.ring)) sched_yield();
        const Place place = ring_message(&in.ring);
        if (place.size_bytes != size_of(number)) fail(number, "wrong size");
        for (int64_t i = 0; i < place.size_bytes; i++)
            if ((unsigned char)in.ring.bytes[place.payload + i] != (unsigned char)(number + (uint64_t)i)) fail(number, "wrong byte");
        in.ring.sequence++;
    }
    ring_finish(&in);
    return NULL;
}

static void write_all(void) {
    Place place;
    uint64_t needed;
    for (uint64_t number = 0; number < (uint64_t)messages; number++) {
        while (!ring_has_entry(&out, &needed)) sched_yield();
        while (!ring_find_place(&out, size_of(number), &place, &needed)) {
            if (needed > number) fail(number, "it waits for itself");
            while (ring_slowest(&out) < needed) sched_yield();
        }
        for (int64_t i = 0; i < place.size_bytes; i++) out.ring.bytes[place.payload + i] = (char)(number + (uint64_t)i);
        ring_publish(&out, &place);
    }
}

int main(int count, char **words) {
    pthread_t threads[64];
    if (count != 8) return fprintf(stderr, "see the head of driver.c\n"), 2;
    messages = atoll(words[1]);
    const int readers = atoi(words[2]);
    most_bytes = atoll(words[6]);
    seed = strtoull(words[7], NULL, 10);
    Ring *ring = &out.ring;
    ring->count = atoll(words[3]);
    ring->inline_bytes = atoll(words[4]);
    ring->arena_bytes = atoll(words[5]);
    ring->entry_bytes = (HEAD_BYTES + ring->inline_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    ring->start_bytes = FIRST_READER + (int64_t)readers * READER_BYTES;
    ring->arena_start = ring->start_bytes + ring->count * ring->entry_bytes;
    const size_t bytes = (size_t)(ring->arena_start + ring->arena_bytes);
    ring->bytes = ring->cursors = aligned_alloc(LINE_BYTES, (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
    out.ends = calloc((size_t)ring->count, sizeof *out.ends);
    if (ring->bytes == NULL || out.ends == NULL) return 2;
    memset(ring->bytes, 0, bytes);
    out.readers = readers;
    out.end_of_room = (uint64_t)ring->arena_bytes;
    shape = out.ring;
    for (int i = 0; i < readers; i++)
        if (pthread_create(&threads[i], NULL, read_all, (void *)(intptr_t)(FIRST_READER + i * READER_BYTES))) return 2;
    write_all();
    for (int i = 0; i < readers; i++) pthread_join(threads[i], NULL);
    printf("%lld messages to each of %d readers\n", (long long)messages, readers);
    free(ring->bytes);
    free(out.ends);
    return 0;
}
