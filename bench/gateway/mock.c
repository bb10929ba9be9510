/* A mock engine for the gateway benchmark: one thread, one epoll loop, answers in vLLM's shape (see answers.h).
 *
 *   mock PORT STAMPS
 *
 * A request says what it wants in OpenAI's fields: "stream", "logprobs" with "return_token_ids" (the large answer),
 * "stream_options.include_usage"; "seed" is the pause between two events in milliseconds, 0 or none for no pause.
 * STAMPS is a file in which the time of sending of every event is left for the load generator. */
#define _GNU_SOURCE
#include "answers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 17, QUEUES = 8, MAX_FDS = 1 << 16, WIRE = 1 << 14 };

struct connection {
    int fd, used;
    char *input;
    /* The stream that is being sent. */
    bool streaming, captured, usage, close_after;
    int event;
    uint32_t counter;
    uint64_t pace, due;
    struct connection *next;
    bool queued;
    /* What the socket did not take. */
    char *rest;
    int rest_length, rest_sent;
};

/* Streams that wait for their next event, by pace: equal pauses keep each queue in order of due times. */
struct queue {
    uint64_t pace;
    struct connection *first, *last;
};

static struct template answers[2], events[2][EVENTS], usage_event;
static struct queue queues[QUEUES];
static struct connection *connections[MAX_FDS];
static uint64_t (*stamps)[EVENTS];
static uint32_t next_counter, finished;
static uint64_t requests;
static int poller;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void digits(char *at, int width, uint32_t value) {
    for (int i = width - 1; i >= 0; i--, value /= 10) at[i] = (char)('0' + value % 10);
}

/* Copy a template and fill its holes for one answer; the number of bytes. */
static int fill(const struct template *t, char *out, uint32_t counter) {
    memcpy(out, t->text, (size_t)t->length);
    for (int i = 0; i < t->holes; i++) {
        const struct hole *hole = &t->hole[i];
        char *at = out + hole->at, text[8];
        switch (hole->kind) {
        case ID: digits(at + 24, 8, counter); break;
        case COUNTER: digits(at, 8, counter); break;
        case COUNTER_BYTES:
            digits(text, 8, counter);
            for (int k = 0; k < 8; k++) digits(at + 3 * k, 2, (uint32_t)text[k]);
            break;
        case TOKEN_ID: digits(at, 5, token_id(counter, hole->index)); break;
        case LOGPROB: digits(at, 7, logprob_digits(counter, hole->index)); break;
        default: break;
        }
    }
    return t->length;
}

static void watch(struct connection *c, uint32_t what) {
    struct epoll_event event = {.events = what, .data.fd = c->fd};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void unqueue(struct connection *c) {
    for (int q = 0; c->queued && q < QUEUES; q++) {
        struct connection **at = &queues[q].first, *before = NULL;
        while (*at && *at != c) before = *at, at = &(*at)->next;
        if (!*at) continue;
        *at = c->next;
        if (queues[q].last == c) queues[q].last = before;
        c->queued = false;
    }
}

static void drop(struct connection *c) {
    unqueue(c);
    connections[c->fd] = NULL;
    close(c->fd);
    free(c->rest);
    free(c->input);
    free(c);
}

/* Send or keep for later; false: the peer has gone. */
static bool send_all(struct connection *c, const char *data, int length) {
    ssize_t sent = send(c->fd, data, (size_t)length, MSG_NOSIGNAL);
    if (sent == length) return true;
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent < 0) sent = 0;
    c->rest = realloc(c->rest, (size_t)(length - sent));
    memcpy(c->rest, data + sent, (size_t)(length - sent));
    c->rest_length = (int)(length - sent);
    c->rest_sent = 0;
    watch(c, EPOLLIN | EPOLLOUT);
    return true;
}

static void enqueue(struct connection *c) {
    int q = 0;
    while (q < QUEUES - 1 && queues[q].pace && queues[q].pace != c->pace) q++;
    queues[q].pace = c->pace;
    c->next = NULL;
    c->queued = true;
    if (queues[q].first) queues[q].last->next = c;
    else queues[q].first = c;
    queues[q].last = c;
}

static bool send_event(struct connection *c) {
    static char wire[WIRE];
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    char body[2048];
    int at = 0;
    if (c->event == 0) memcpy(wire, head, sizeof head - 1), at = sizeof head - 1;
    if (c->event == EVENTS - 1 && c->usage) {
        int length = fill(&usage_event, body, c->counter);
        at += sprintf(wire + at, "%x\r\n", length);
        memcpy(wire + at, body, (size_t)length);
        at += length + sprintf(wire + at + length, "\r\n");
    }
    int length = fill(&events[c->captured][c->event], body, c->counter);
    at += sprintf(wire + at, "%x\r\n", length);
    memcpy(wire + at, body, (size_t)length);
    at += length + sprintf(wire + at + length, c->event == EVENTS - 1 ? "\r\n0\r\n\r\n" : "\r\n");
    stamps[c->counter % STAMP_SLOTS][c->event] = now_us();
    c->event++;
    return send_all(c, wire, at);
}

/* Send what is due; false: the peer has gone. */
static bool go_on(struct connection *c) {
    while (c->streaming && !c->rest) {
        if (!send_event(c)) return false;
        if (c->event == EVENTS) {
            c->streaming = false;
            finished++;
        } else if (c->pace) {
            c->due += c->pace;
            enqueue(c);
            return true;
        }
    }
    return true;
}

static const char *value_of(const char *body, size_t length, const char *name) {
    const char *found = memmem(body, length, name, strlen(name));
    if (!found) return NULL;
    found += strlen(name);
    const char *end = body + length;
    while (found < end && (*found == ' ' || *found == ':')) found++;
    return found;
}

static bool is_true(const char *body, size_t length, const char *name) {
    const char *value = value_of(body, length, name);
    return value && !strncmp(value, "true", 4);
}

static bool answer_text(struct connection *c, const char *type, const char *text) {
    char out[2048];
    int length = snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s", type,
                          strlen(text), text);
    return send_all(c, out, length);
}

static bool answer_get(struct connection *c, const char *path) {
    char text[512];
    if (!strncmp(path, "/v1/models", 10))
        return answer_text(c, "application/json",
                           "{\"object\":\"list\",\"data\":[{\"id\":\"base\",\"object\":\"model\",\"created\":0,"
                           "\"owned_by\":\"vllm\",\"root\":\"base\",\"parent\":null,\"max_model_len\":4096}]}");
    if (!strncmp(path, "/stats", 6)) {
        snprintf(text, sizeof text, "{\"answers\":%u,\"finished\":%u,\"requests\":%lu}", next_counter, finished,
                 (unsigned long)requests);
        return answer_text(c, "application/json", text);
    }
    if (!strncmp(path, "/metrics", 8))
        return answer_text(c, "text/plain", "vllm:num_requests_running{model_name=\"base\"} 0.0\n");
    return answer_text(c, "application/json", "{}");
}

static bool answer_post(struct connection *c, const char *body, size_t length) {
    static char out[ROOM];
    c->counter = next_counter++;
    c->captured = is_true(body, length, "\"logprobs\"") && is_true(body, length, "\"return_token_ids\"");
    if (is_true(body, length, "\"stream\"")) {
        const char *seed = value_of(body, length, "\"seed\"");
        c->usage = is_true(body, length, "\"include_usage\"");
        c->pace = seed ? strtoul(seed, NULL, 10) * 1000u : 0;
        c->due = now_us();
        c->event = 0;
        c->streaming = true;
        return go_on(c);
    }
    int at = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n",
                     answers[c->captured].length);
    finished++;
    return send_all(c, out, at + fill(&answers[c->captured], out + at, c->counter));
}

/* Answer every whole request in the input; false: the connection is to be closed. */
static bool serve(struct connection *c) {
    while (!c->streaming && !c->rest) {
        char *end = memmem(c->input, (size_t)c->used, "\r\n\r\n", 4);
        if (!end) return c->used < ROOM - 1;
        *end = 0;
        char *field = strcasestr(c->input, "\r\ncontent-length:");
        size_t length = field ? strtoul(field + 17, NULL, 10) : 0, head = (size_t)(end - c->input) + 4;
        if (strcasestr(c->input, "\r\ntransfer-encoding:") || head + length >= ROOM) return false;
        *end = '\r';
        if ((size_t)c->used < head + length) return true;
        requests++;
        bool get = !strncmp(c->input, "GET ", 4);
        bool alive = get ? answer_get(c, c->input + 4) : answer_post(c, c->input + head, length);
        memmove(c->input, c->input + head + length, (size_t)c->used - head - length);
        c->used -= (int)(head + length);
        c->input[c->used] = 0;
        if (!alive) return false;
    }
    return true;
}

static bool flush_rest(struct connection *c) {
    ssize_t sent = send(c->fd, c->rest + c->rest_sent, (size_t)(c->rest_length - c->rest_sent), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN;
    c->rest_sent += (int)sent;
    if (c->rest_sent < c->rest_length) return true;
    free(c->rest);
    c->rest = NULL;
    watch(c, EPOLLIN);
    return c->queued || go_on(c);
}

static bool on_ready(struct connection *c, uint32_t what) {
    if ((what & EPOLLOUT) && c->rest && !flush_rest(c)) return false;
    if (!(what & (EPOLLIN | EPOLLHUP | EPOLLERR))) return serve(c);
    ssize_t got = recv(c->fd, c->input + c->used, (size_t)(ROOM - 1 - c->used), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
    if (got > 0) c->used += (int)got;
    c->input[c->used] = 0;
    return serve(c);
}

static void accept_all(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        if (fd >= MAX_FDS) {
            close(fd);
            continue;
        }
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->input = calloc(1, ROOM);
        connections[fd] = c;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

/* Send every event that is due; milliseconds until the next one, -1: none waits. */
static int run_queues(void) {
    uint64_t now = now_us(), nearest = UINT64_MAX;
    for (int q = 0; q < QUEUES; q++) {
        struct queue *queue = &queues[q];
        while (queue->first && queue->first->due <= now) {
            struct connection *c = queue->first;
            queue->first = c->next;
            c->queued = false;
            if (!go_on(c) || !serve(c)) drop(c);
        }
        if (queue->first && queue->first->due < nearest) nearest = queue->first->due;
    }
    if (nearest == UINT64_MAX) return -1;
    now = now_us();
    return nearest <= now ? 0 : (int)((nearest - now + 999) / 1000);
}

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "mock PORT STAMPS\n"), 2;
    signal(SIGPIPE, SIG_IGN);
    for (int captured = 0; captured < 2; captured++) {
        build_answer(&answers[captured], captured);
        for (int i = 0; i < EVENTS; i++) build_event(&events[captured][i], i, captured);
    }
    build_usage_event(&usage_event);
    int file = open(arguments[2], O_RDWR | O_CREAT, 0600);
    size_t size = sizeof *stamps * STAMP_SLOTS;
    if (file < 0 || ftruncate(file, (off_t)size)) return perror("stamps"), 1;
    stamps = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096))
        return perror("listen"), 1;
    poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[256];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int found = epoll_wait(poller, ready, 256, run_queues());
        for (int i = 0; i < found; i++) {
            if (ready[i].data.fd == listener) accept_all(listener);
            else if (connections[ready[i].data.fd] && !on_ready(connections[ready[i].data.fd], ready[i].events))
                drop(connections[ready[i].data.fd]);
        }
    }
}
