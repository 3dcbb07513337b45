/* Heartbeats over many connections from one thread: each connection's request is sent, its answer awaited, and so on.

   Closed loop (period 0): the next request leaves when the answer is there, so every connection always has one under way and
   the server is as busy as it can be. Paced: each connection sends once a period, the connections spread evenly over it; the
   time of an answer counts from when its request was due, so that a stall of the server is seen by all who wait behind it.

   Requests are written beforehand; every answer has the same size, and its error code in its last two bytes. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 512
#define ANSWER 64

typedef struct {
    int fd;
    int waiting;        /* a request is under way */
    unsigned got;       /* bytes of its answer */
    int64_t since;      /* when it was sent, or was due */
    unsigned char answer[ANSWER];
} Connection;

typedef struct {
    int64_t beats;      /* answers without an error */
    int64_t errors;     /* answers with one */
    int64_t skipped;    /* paced: requests not sent because the one before had no answer yet */
    int64_t ns;         /* how long it all took */
    int64_t kept;       /* latencies written */
    int32_t code;       /* the first error code */
    int32_t failed;     /* errno of the call that ended it, ETIMEDOUT if no answer came for ten seconds, 0 if all went well */
} Result;

static int64_t
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int
send_all(int fd, const unsigned char *data, int size)
{
    while (size > 0) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -1;  /* a request is smaller than any send buffer: EAGAIN is a failure too */
        }
        data += n;
        size -= n;
    }
    return 0;
}

/* 1 when the answer is whole, 0 when not yet, -1 on failure. */
static int
receive(Connection *c, unsigned size)
{
    while (c->got < size) {
        ssize_t n = recv(c->fd, c->answer + c->got, size - c->got, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return 0;
        }
        if (n == 0) {
            errno = ECONNRESET;
        }
        if (n <= 0) {
            return -1;
        }
        c->got += n;
    }
    return 1;
}

/* fds[n], requests[offsets[i]] to offsets[i + 1]; answers of `size` bytes. Latencies in 100 ns, `room` of them at most. */
int
run_beats(const int *fds, const unsigned char *requests, const int *offsets, int n, int size, double seconds, double period,
          uint32_t *latencies, int64_t room, Result *result)
{
    memset(result, 0, sizeof *result);
    Connection *all = calloc(n, sizeof *all);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event events[EVENTS];
    if (all == NULL || poll < 0 || n < 1 || size < 10 || size > ANSWER) {
        result->failed = errno ? errno : EINVAL;
        goto end;
    }
    int64_t start = now(), stop = start + (int64_t)(seconds * 1e9), step = (int64_t)(period * 1e9) / n, due = start;
    int64_t heard = start;
    int under_way = 0, next = 0;
    for (int i = 0; i < n; i++) {
        all[i].fd = fds[i];
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fds[i], &event) < 0) {
            result->failed = errno;
            goto end;
        }
    }
    for (int i = 0; step == 0 && i < n; i++) {
        all[i].since = now();
        if (send_all(fds[i], requests + offsets[i], offsets[i + 1] - offsets[i]) < 0) {
            result->failed = errno;
            goto end;
        }
        all[i].waiting = 1;
        under_way++;
    }
    for (;;) {
        int64_t at = now();
        for (; step > 0 && due <= at && due < stop; due += step, next = (next + 1) % n) {
            Connection *c = &all[next];
            if (c->waiting) {
                result->skipped++;
                continue;
            }
            c->since = due;
            if (send_all(c->fd, requests + offsets[next], offsets[next + 1] - offsets[next]) < 0) {
                result->failed = errno;
                goto end;
            }
            c->waiting = 1;
            under_way++;
        }
        if (at >= stop && under_way == 0) {
            break;
        }
        if (at - heard > INT64_C(10000000000) && under_way > 0) {
            result->failed = ETIMEDOUT;
            goto end;
        }
        int64_t pause = step > 0 && due < stop ? (due - at) / 1000000 : 1000;
        int ready = epoll_wait(poll, events, EVENTS, pause < 0 ? 0 : (int)pause);
        if (ready < 0 && errno != EINTR) {
            result->failed = errno;
            goto end;
        }
        for (int e = 0; e < ready; e++) {
            int i = events[e].data.u32;
            Connection *c = &all[i];
            int whole = receive(c, size);
            if (whole < 0) {
                result->failed = errno;
                goto end;
            }
            if (whole == 0) {
                continue;
            }
            int64_t then = now();
            int code = (int16_t)(c->answer[size - 2] << 8 | c->answer[size - 1]);
            heard = then;
            if (code != 0) {
                result->code = result->errors++ ? result->code : code;
            }
            else if (then <= stop || step > 0) {
                result->beats++;
                if (result->kept < room) {
                    latencies[result->kept++] = (uint32_t)((then - c->since) / 100);
                }
            }
            c->got = 0;
            c->waiting = 0;
            under_way--;
            if (step == 0 && then < stop && code == 0) {
                c->since = then;
                if (send_all(c->fd, requests + offsets[i], offsets[i + 1] - offsets[i]) < 0) {
                    result->failed = errno;
                    goto end;
                }
                c->waiting = 1;
                under_way++;
            }
        }
    }
    result->ns = (step > 0 ? now() : stop) - start;
end:
    if (poll >= 0) {
        close(poll);
    }
    free(all);
    return result->failed;
}
