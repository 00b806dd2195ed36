/* The ring of an every_message channel, without Python: what ring_memory.py and ring.py say, in C. It waits for nobody; its callers
   do. Each word has one writer, so aligned loads and stores suffice, ordered by acquire and release. */

#ifndef IPCBENCH_RING_H
#define IPCBENCH_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { HEAD_BYTES = 24, LINE_BYTES = 64 }; /* as in ring_memory.py */

enum { HOT_BYTES = 1 << 20 }; /* of the arena, what a cache may hold: as in ring.py */

/* Offsets in bytes, and values, as in ipcbench/sync/cursors.py. */
enum { CLOSED = 2, ON_BELL = 1, ON_FUTEX = 2 };
enum { WRITER_FENCES = 8 * 4, WRITER_SLEEPS = 8 * 8, READER_SLEEPS = 8 * 16, FIRST_READER = 8 * 24, READER_BYTES = 8 * 8 };

typedef struct {
    char *bytes;       /* where its entries and its arena are */
    char *cursors;     /* where the words are that say how far each endpoint is */
    uint64_t sequence; /* of the next message */
    int64_t count, entry_bytes, inline_bytes, start_bytes, arena_start, arena_bytes;
    bool fenced; /* whether whoever sleeps relies on a fence here */
} Ring;

typedef struct {
    Ring ring;
    uint64_t room;                    /* the first number that may not be written before the readers are looked at again */
    uint64_t next_place, end_of_room; /* they only grow; places are these modulo the arena's size */
    uint64_t *ends;                   /* by entry: where the arena was filled up to after its message */
    int readers;
} RingOut;

typedef struct {
    Ring ring;
    int64_t consumed_offset;
} RingIn;

/* Where a message goes, or lies. */
typedef struct {
    int64_t entry, payload; /* offsets in bytes */
    int64_t size_bytes;
    uint64_t end; /* of the writer's: where the arena is filled up to after it */
} Place;

static inline uint64_t ring_load(const Ring *ring, int64_t offset) {
    return __atomic_load_n((uint64_t *)(ring->bytes + offset), __ATOMIC_ACQUIRE);
}

static inline void ring_store(const Ring *ring, int64_t offset, uint64_t value) {
    __atomic_store_n((uint64_t *)(ring->bytes + offset), value, __ATOMIC_RELEASE);
}

static inline uint64_t ring_cursor(const Ring *ring, int64_t offset) {
    return __atomic_load_n((uint64_t *)(ring->cursors + offset), __ATOMIC_ACQUIRE);
}

static inline void ring_fence(const Ring *ring) {
    if (ring->fenced) __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline int64_t ring_entry(const Ring *ring) {
    return ring->start_bytes + (int64_t)(ring->sequence % (uint64_t)ring->count) * ring->entry_bytes;
}

/* How many messages the slowest reader has finished with. */
static inline uint64_t ring_slowest(const RingOut *self) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < self->readers; i++) {
        uint64_t consumed = ring_cursor(&self->ring, FIRST_READER + (int64_t)i * READER_BYTES);
        if (consumed < least) least = consumed;
    }
    return least;
}

/* Whether there is an entry for the next message; if not, that takes so many messages that all readers have finished with. */
static inline bool ring_has_entry(RingOut *self, uint64_t *needed) {
    const Ring *ring = &self->ring;
    if (ring->sequence < self->room) return true;
    self->room = ring_slowest(self) + (uint64_t)ring->count;
    *needed = ring->sequence + 1 - (uint64_t)ring->count;
    return ring->sequence < self->room;
}

/* Where the arena is free up to if all readers have finished with so many messages. */
static inline uint64_t ring_end_of_room(const RingOut *self, uint64_t consumed) {
    const uint64_t before = consumed == 0 ? 0 : self->ends[(consumed - 1) % (uint64_t)self->ring.count];
    return before + (uint64_t)self->ring.arena_bytes;
}

/* Find a place for the next message, which has an entry; false if that takes so many messages that all readers have finished
   with. Nothing is taken before it is published. */
static inline bool ring_find_place(RingOut *self, int64_t size_bytes, Place *place, uint64_t *needed) {
    const Ring *ring = &self->ring;
    const uint64_t arena = (uint64_t)ring->arena_bytes;
    *place = (Place){ring_entry(ring), ring_entry(ring) + HEAD_BYTES, size_bytes, self->next_place};
    if (size_bytes <= ring->inline_bytes) return true;
    const uint64_t bytes = ((uint64_t)size_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    uint64_t begin = self->next_place;
    if (begin % arena + bytes > arena) begin = (begin + arena - 1) / arena * arena; /* a message is in one piece */
    if (begin + bytes > self->end_of_room || begin % arena >= HOT_BYTES) {
        const uint64_t consumed = ring_slowest(self);
        if (consumed >= ring->sequence) { /* all of it is free: begin where the cache may still hold it */
            begin = self->next_place = (begin + arena - 1) / arena * arena; /* also if it is given up: nothing is there */
            self->end_of_room = begin + arena;
        } else if (begin + bytes > self->end_of_room) {
            self->end_of_room = ring_end_of_room(self, consumed);
        }
        if (begin + bytes > self->end_of_room) {
            uint64_t enough = consumed + 1;
            while (enough < ring->sequence && begin + bytes > ring_end_of_room(self, enough)) enough++;
            *needed = enough;
            return false;
        }
    }
    place->payload = ring->arena_start + (int64_t)(begin % arena);
    place->end = begin + bytes;
    return true;
}

/* Make the message at a place, which is not published yet, shorter; readers look for a short one in its entry. */
static inline void ring_shrink(RingOut *self, Place *place, int64_t size_bytes) {
    const Ring *ring = &self->ring;
    if (size_bytes <= ring->inline_bytes && place->size_bytes > ring->inline_bytes) {
        memcpy(ring->bytes + place->entry + HEAD_BYTES, ring->bytes + place->payload, (size_t)size_bytes);
        place->payload = place->entry + HEAD_BYTES;
        place->end = self->next_place;
    }
    place->size_bytes = size_bytes;
}

/* Publish the message at a place. */
static inline void ring_publish(RingOut *self, const Place *place) {
    Ring *ring = &self->ring;
    ring_store(ring, place->entry + 8, (uint64_t)place->size_bytes);
    ring_store(ring, place->entry + 16, (uint64_t)(place->payload - ring->arena_start));
    self->ends[ring->sequence % (uint64_t)ring->count] = self->next_place = place->end;
    /* Sequentially consistent, as the loads in ring_has_sleepers are: either they see that a reader sleeps, or it sees this. */
    __atomic_store_n((uint64_t *)(ring->bytes + place->entry), ++ring->sequence, __ATOMIC_SEQ_CST);
}

/* Whether a reader may sleep. */
static inline bool ring_has_sleepers(const RingOut *self) {
    for (int i = 0; i < self->readers; i += 8)
        if (__atomic_load_n((uint64_t *)(self->ring.cursors + READER_SLEEPS + i), __ATOMIC_SEQ_CST) != 0) return true;
    return false;
}

/* The 32-bit word that a reader sleeps on: it has the bytes of four of them. */
static inline uint32_t *ring_sleep_word(const Ring *ring, int64_t sleep_byte) {
    return (uint32_t *)(ring->cursors + sleep_byte / 4 * 4);
}

static inline uint8_t *ring_sleep_flag(const Ring *ring, int64_t sleep_byte) { return (uint8_t *)(ring->cursors + sleep_byte); }

static inline void ring_set_dozing(const Ring *ring, int64_t sleep_byte) {
    __atomic_store_n(ring_sleep_flag(ring, sleep_byte), (uint8_t)ON_FUTEX, __ATOMIC_SEQ_CST);
}

/* Have the writer ring this reader's doorbell once it has published. */
static inline void ring_set_watching(const Ring *ring, int64_t sleep_byte) {
    __atomic_store_n(ring_sleep_flag(ring, sleep_byte), (uint8_t)ON_BELL, __ATOMIC_SEQ_CST);
}

static inline void ring_set_awake(const Ring *ring, int64_t sleep_byte) {
    __atomic_store_n(ring_sleep_flag(ring, sleep_byte), 0, __ATOMIC_RELAXED);
}

static inline bool ring_is_dozing(const Ring *ring, int64_t sleep_byte) {
    return __atomic_load_n(ring_sleep_flag(ring, sleep_byte), __ATOMIC_ACQUIRE) == ON_FUTEX;
}

/* Whether the writer orders a message before its look for sleepers; a reader that falls asleep need then not see to it. */
static inline bool ring_writer_fences(const Ring *ring) { return ring_cursor(ring, WRITER_FENCES) != 0; }

/* Whether the writer has closed. */
static inline bool ring_is_ended(const Ring *ring) { return ring_cursor(ring, 0) == CLOSED; }

/* Wake the readers that sleep: on words, or at doorbells. */
static inline void ring_wake(const RingOut *self, void (*wake)(uint32_t *), const int *bells, void (*ring)(int)) {
    for (int i = 0; i < self->readers; i++) {
        const int64_t sleep_byte = READER_SLEEPS + i;
        const uint8_t how = __atomic_load_n(ring_sleep_flag(&self->ring, sleep_byte), __ATOMIC_ACQUIRE);
        if (how == 0) continue;
        __atomic_store_n(ring_sleep_flag(&self->ring, sleep_byte), 0, __ATOMIC_SEQ_CST); /* first: then it does not sleep */
        if (how == ON_FUTEX) wake(ring_sleep_word(&self->ring, sleep_byte));
        else ring(bells[i]);
    }
}

/* Say that this reader has finished with its last message; whether the writer may sleep. */
static inline bool ring_finish(const RingIn *self) {
    __atomic_store_n((uint64_t *)(self->ring.cursors + self->consumed_offset), self->ring.sequence, __ATOMIC_RELEASE);
    ring_fence(&self->ring);
    return ring_cursor(&self->ring, WRITER_SLEEPS) != 0;
}

static inline bool ring_has_message(const Ring *ring) {
    return ring_load(ring, ring_entry(ring)) == ring->sequence + 1;
}

/* Return where the next message lies, which is there; `sequence` is the caller's to increase. */
static inline Place ring_message(const Ring *ring) {
    const int64_t entry = ring_entry(ring), size_bytes = (int64_t)ring_load(ring, entry + 8);
    const bool is_inline = size_bytes <= ring->inline_bytes;
    return (Place){entry, is_inline ? entry + HEAD_BYTES : ring->arena_start + (int64_t)ring_load(ring, entry + 16), size_bytes, 0};
}

#endif
