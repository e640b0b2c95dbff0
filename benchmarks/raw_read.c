/* The bare system call over a list of chunks: what a pull is compared with. Compiled at run time. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define BATCH 1024 /* the most iovecs one call takes */

struct part {
    pid_t pid;
    const uint64_t *chunks; /* (local address, remote address, bytes) */
    uint64_t count;
    pthread_barrier_t *start;
    int error;
};

static int read_part(const struct part *part) {
    struct iovec local[BATCH], remote[BATCH];
    for (uint64_t first = 0; first < part->count; first += BATCH) {
        uint64_t n = part->count - first < BATCH ? part->count - first : BATCH;
        ssize_t wanted = 0;
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t *chunk = part->chunks + 3 * (first + i);
            local[i] = (struct iovec){(void *)(uintptr_t)chunk[0], chunk[2]};
            remote[i] = (struct iovec){(void *)(uintptr_t)chunk[1], chunk[2]};
            wanted += (ssize_t)chunk[2];
        }
        ssize_t moved = process_vm_readv(part->pid, local, n, remote, n, 0);
        if (moved < 0) return errno;
        if (moved != wanted) return EFAULT;
    }
    return 0;
}

static void *second_thread(void *argument) {
    struct part *part = argument;
    pthread_barrier_wait(part->start);
    part->error = read_part(part);
    return 0;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Reads all chunks. Returns nanoseconds, without those of starting a thread, or -errno. `split` is the number of chunks
   that the calling thread reads while a second thread reads the others; split == count uses one thread. */
int64_t raw_read(int pid, const uint64_t *chunks, uint64_t count, uint64_t split) {
    struct part mine = {pid, chunks, split, 0, 0};
    if (split == count) {
        int64_t started = now();
        int error = read_part(&mine);
        int64_t ended = now();
        return error ? -(int64_t)error : ended - started;
    }
    pthread_barrier_t start;
    pthread_t thread;
    struct part theirs = {pid, chunks + 3 * split, count - split, &start, 0};
    int error = pthread_barrier_init(&start, 0, 2);
    if (error) return -(int64_t)error;
    error = pthread_create(&thread, 0, second_thread, &theirs);
    if (error) {
        pthread_barrier_destroy(&start);
        return -(int64_t)error;
    }
    pthread_barrier_wait(&start);
    int64_t started = now();
    mine.error = read_part(&mine);
    pthread_join(thread, 0);
    int64_t ended = now();
    pthread_barrier_destroy(&start);
    if (mine.error || theirs.error) return -(int64_t)(mine.error ? mine.error : theirs.error);
    return ended - started;
}
