/* The load generator of the gateway benchmark: a closed loop on kept-alive connections, one thread, one epoll loop.
 *
 *   load port=8400 body=FILE [key=TEXT] [connections=1] [warmup=0.7] [seconds=5] [requests=0] [stream=0] [exact=1]
 *        [stamps=FILE] [counters=FILE] [stagger=0] [drain=10]
 *
 * requests=N ends the window after N answers instead of after the seconds. exact=1 compares every answer, byte by
 * byte, with what the mock answers to a request without log-probs; id, created and model may differ. stamps is the
 * mock's file with the times of sending, from which the delay of every event follows. counters receives the counters
 * of all answers that arrived whole, as 32-bit numbers. "@@@@@@@@" in the body becomes the number of the request. Connections begin spread over stagger seconds. The lines "start"
 * and "stop" on stdout mark the measured window; then one JSON object says what was seen in it. */
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

enum state { HEAD, LENGTH, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, TO_CLOSE };
enum { READ = 1 << 16, MOST_ERRORS = 5000 };

struct buffer {
    char *data;
    size_t length, room;
};

struct connection {
    int fd, status, events;
    enum state state;
    bool idle, close_after, ended;
    uint32_t counter;
    bool counted;
    size_t left;
    uint64_t sent_at, last_event, first_event, starts_at, widest_gap;
    struct buffer head, body;
};

struct samples {
    uint32_t *at;
    size_t count, room;
};

static struct options {
    int port, connections, stream, exact, requests;
    double warmup, seconds, stagger, drain;
    const char *body, *key, *stamps, *counters;
} options = {.connections = 1, .warmup = 0.7, .seconds = 5, .exact = 1, .drain = 10, .key = "none"};

static struct template answer, events[EVENTS];
static struct samples latency, first, delay, gap, seen;
static uint64_t (*stamps)[EVENTS];
static char *request, *mark_in_request;
static size_t request_length;
static int poller, flying;
static bool measuring, stopping;
static uint64_t done, arrived, errors, wrong, missing, total, begun_requests;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void add_sample(struct samples *s, uint64_t value) {
    if (s->count == s->room) s->at = realloc(s->at, sizeof *s->at * (s->room = s->room ? 2 * s->room : 4096));
    s->at[s->count++] = value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static void append(struct buffer *b, const char *data, size_t length) {
    if (b->length + length + 1 > b->room) b->data = realloc(b->data, b->room = 2 * (b->length + length + 1));
    memcpy(b->data + b->length, data, length);
    b->length += length;
    b->data[b->length] = 0;
}

/* Whether the text is the template with anything in the free holes and the answer's counter in the others. */
static bool matches(const struct template *t, const char *data, size_t length) {
    const char *end = data + length, *literal = t->text;
    for (int i = 0; i <= t->holes; i++) {
        const char *until = i < t->holes ? t->text + t->hole[i].at : t->text + t->length;
        size_t size = (size_t)(until - literal);
        if ((size_t)(end - data) < size || memcmp(data, literal, size)) return false;
        data += size;
        if (i == t->holes) return data == end;
        literal = until + HOLE_WIDTH[t->hole[i].kind];
        if (t->hole[i].kind <= MODEL)
            while (data < end && *data != *literal) data++;
        else data += HOLE_WIDTH[t->hole[i].kind];
        if (data > end) return false;
    }
    return false;
}

static void mismatch(const struct template *t, const char *data, size_t length) {
    if (!wrong++) fprintf(stderr, "an answer differs\nexpected: %s\nreceived: %.*s\n", t->text, (int)length, data);
}

/* The answer's counter is the text of its first token. */
static void find_counter(struct connection *c, const char *data, size_t length) {
    static const char field[] = "\"content\":";
    const char *found = memmem(data, length, field, sizeof field - 1), *end = data + length;
    if (c->counted || !found) return;
    found += sizeof field - 1;
    while (found < end && (*found == ' ' || *found == '"')) found++;
    if (end - found < 8 || *found < '0' || *found > '9') return;
    char text[9] = {0};
    memcpy(text, found, 8);
    c->counter = (uint32_t)strtoul(text, NULL, 10);
    c->counted = true;
}

static void note_delay(struct connection *c, int event, uint64_t now) {
    uint64_t sent = stamps[c->counter % STAMP_SLOTS][event];
    if (measuring) add_sample(&delay, now > sent ? now - sent : 0);
}

static void on_event(struct connection *c, const char *data, size_t length, uint64_t now) {
    if (length < 7 || memcmp(data, "data:", 5)) return;
    int event = c->events++;
    if (measuring) arrived++;
    if (event == 0) c->first_event = now;
    else if (now - c->last_event > c->widest_gap) c->widest_gap = now - c->last_event;
    c->last_event = now;
    if (event == 1 || event == 2) find_counter(c, data, length);
    if (stamps && c->counted && options.exact && event < EVENTS) {
        if (event == 1) note_delay(c, 0, c->first_event);
        note_delay(c, event, now);
    }
    if (options.exact && (event >= EVENTS || !matches(&events[event], data, length)))
        mismatch(&events[event < EVENTS ? event : EVENTS - 1], data, length);
    if (memmem(data, length, "[DONE]", 6)) c->ended = true;
}

static void take_body(struct connection *c, const char *data, size_t length, uint64_t now) {
    append(&c->body, data, length);
    if (!options.stream || c->status != 200) return;
    char *start = c->body.data, *end = start + c->body.length, *blank;
    while ((blank = memmem(start, (size_t)(end - start), "\n\n", 2))) {
        on_event(c, start, (size_t)(blank + 2 - start), now);
        start = blank + 2;
    }
    c->body.length = (size_t)(end - start);
    memmove(c->body.data, start, c->body.length + 1);
}

static void open_connection(struct connection *c, int index) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) perror("connect"), exit(1);
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)index};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

static void begin(struct connection *c) {
    c->state = HEAD;
    c->idle = c->close_after = c->ended = c->counted = false;
    c->events = 0;
    c->widest_gap = 0;
    c->head.length = c->body.length = 0;
    c->sent_at = now_us();
    flying++;
    for (uint64_t i = 0, number = begun_requests++; mark_in_request && i < 8; i++, number /= 10)
        mark_in_request[7 - i] = (char)('0' + number % 10);
    if (send(c->fd, request, request_length, MSG_NOSIGNAL) != (ssize_t)request_length) errors++;
}

static void failed(const char *why, const char *detail) {
    if (!errors++) fprintf(stderr, "%s: %.600s\n", why, detail ? detail : "");
    if (errors > MOST_ERRORS) fprintf(stderr, "too many errors\n"), exit(1);
}

static void finish(struct connection *c, uint64_t now) {
    bool stream = options.stream;
    total++;
    if (c->status != 200) failed("status", c->body.data);
    else if (stream && !c->ended) failed("stream without its end", c->body.data);
    if (c->status == 200 && !stream) {
        find_counter(c, c->body.data, c->body.length);
        if (options.exact && !matches(&answer, c->body.data, c->body.length))
            mismatch(&answer, c->body.data, c->body.length);
    }
    if (c->status == 200 && stream && c->events < EVENTS) missing += (uint64_t)(EVENTS - c->events);
    if (c->status == 200 && c->counted && (!stream || c->ended)) add_sample(&seen, c->counter);
    if (measuring && c->status == 200) {
        done++;
        add_sample(&latency, now - c->sent_at);
        if (stream) add_sample(&first, c->first_event - c->sent_at), add_sample(&gap, c->widest_gap);
    }
    c->idle = true;
    flying--;
}

static void read_head(struct connection *c) {
    c->status = atoi(c->head.data + 9);
    char *length = strcasestr(c->head.data, "\r\ncontent-length:");
    c->close_after = strcasestr(c->head.data, "\r\nconnection: close") != NULL;
    if (strcasestr(c->head.data, "\r\ntransfer-encoding: chunked")) c->state = CHUNK_SIZE;
    else if (length) c->state = LENGTH, c->left = strtoul(length + 17, NULL, 10);
    else c->state = TO_CLOSE;
    c->head.length = 0;
}

/* Take a line into the head buffer; the bytes used, and whether the line is whole. */
static size_t take_line(struct connection *c, const char *data, size_t length, bool *whole) {
    const char *end = memchr(data, '\n', length);
    size_t used = end ? (size_t)(end - data) + 1 : length;
    append(&c->head, data, used);
    *whole = end != NULL;
    return used;
}

/* Use some of what arrived; the number of bytes. */
static size_t step(struct connection *c, const char *data, size_t length, uint64_t now) {
    size_t used = length;
    bool whole;
    switch (c->state) {
    case HEAD:
        used = take_line(c, data, length, &whole);
        if (c->head.length < 4 || memcmp(c->head.data + c->head.length - 4, "\r\n\r\n", 4)) return used;
        read_head(c);
        if (c->state == LENGTH && c->left == 0) finish(c, now);
        return used;
    case LENGTH:
    case CHUNK:
        used = length < c->left ? length : c->left;
        take_body(c, data, used, now);
        c->left -= used;
        if (c->left == 0 && c->state == LENGTH) finish(c, now);
        else if (c->left == 0) c->state = CHUNK_END;
        return used;
    case CHUNK_SIZE:
    case CHUNK_END:
    case TRAILER:
        used = take_line(c, data, length, &whole);
        if (!whole) return used;
        if (c->state == CHUNK_SIZE) {
            c->left = strtoul(c->head.data, NULL, 16);
            c->state = c->left ? CHUNK : TRAILER;
        } else if (c->state == CHUNK_END) c->state = CHUNK_SIZE;
        else if (c->head.length <= 2) finish(c, now);
        c->head.length = 0;
        return used;
    default:
        take_body(c, data, length, now);
        return length;
    }
}

static void on_readable(struct connection *c, int index) {
    static char data[READ];
    ssize_t got = recv(c->fd, data, sizeof data, 0);
    if (got < 0 && errno == EAGAIN) return;
    uint64_t now = now_us();
    if (got <= 0) {
        if (!c->idle && c->state == TO_CLOSE) finish(c, now);
        else if (!c->idle) failed("connection closed in an answer", NULL), c->idle = true, flying--;
        c->close_after = true;
    }
    for (ssize_t at = 0; at < got && !c->idle;) at += (ssize_t)step(c, data + at, (size_t)(got - at), now);
    if (c->idle && c->close_after) close(c->fd), open_connection(c, index), c->close_after = false;
    if (c->idle && !stopping) begin(c);
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, struct samples *s) {
    printf(",\"%s_ms\":", name);
    if (!s->count) {
        printf("null");
        return;
    }
    qsort(s->at, s->count, sizeof *s->at, by_value);
    printf("{\"p50\":%.3f,\"p99\":%.3f,\"max\":%.3f}", s->at[s->count / 2] / 1e3,
           s->at[(size_t)((double)(s->count - 1) * 0.99)] / 1e3, s->at[s->count - 1] / 1e3);
}

static void read_options(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        if (!value) fprintf(stderr, "not name=value: %s\n", arguments[i]), exit(2);
        *value++ = 0;
        const char *name = arguments[i];
        if (!strcmp(name, "port")) options.port = atoi(value);
        else if (!strcmp(name, "connections")) options.connections = atoi(value);
        else if (!strcmp(name, "stream")) options.stream = atoi(value);
        else if (!strcmp(name, "exact")) options.exact = atoi(value);
        else if (!strcmp(name, "requests")) options.requests = atoi(value);
        else if (!strcmp(name, "warmup")) options.warmup = atof(value);
        else if (!strcmp(name, "seconds")) options.seconds = atof(value);
        else if (!strcmp(name, "stagger")) options.stagger = atof(value);
        else if (!strcmp(name, "drain")) options.drain = atof(value);
        else if (!strcmp(name, "body")) options.body = value;
        else if (!strcmp(name, "key")) options.key = value;
        else if (!strcmp(name, "stamps")) options.stamps = value;
        else if (!strcmp(name, "counters")) options.counters = value;
        else fprintf(stderr, "unknown option %s\n", name), exit(2);
    }
}

static void prepare(void) {
    static char body[1 << 20];
    int file = open(options.body ? options.body : "", O_RDONLY);
    ssize_t length = file < 0 ? -1 : read(file, body, sizeof body);
    if (length < 0) perror("body"), exit(2);
    request = malloc((size_t)length + 1024);
    request_length = (size_t)sprintf(
        request,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nauthorization: Bearer %s\r\n"
        "content-type: application/json\r\naccept: application/json\r\nuser-agent: hone-bench\r\ncontent-length: %zd\r\n\r\n",
        options.port, options.key, length);
    memcpy(request + request_length, body, (size_t)length);
    mark_in_request = memmem(request + request_length, (size_t)length, "@@@@@@@@", 8);
    request_length += (size_t)length;
    build_answer(&answer, false);
    for (int i = 0; i < EVENTS; i++) build_event(&events[i], i, false);
    if (!options.stamps) return;
    file = open(options.stamps, O_RDONLY);
    stamps = file < 0 ? NULL : mmap(NULL, sizeof *stamps * STAMP_SLOTS, PROT_READ, MAP_SHARED, file, 0);
    if (!stamps || stamps == MAP_FAILED) perror("stamps"), exit(2);
}

static void mark(const char *line) {
    puts(line);
    fflush(stdout);
}

int main(int count, char **arguments) {
    read_options(count, arguments);
    prepare();
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(0);
    struct connection *all = calloc((size_t)options.connections, sizeof *all);
    struct epoll_event ready[256];
    uint64_t begun = now_us(), opened = 0, closed = 0;
    for (int i = 0; i < options.connections; i++) {
        all[i].idle = true;
        all[i].starts_at = begun + (uint64_t)(options.stagger * 1e6 * i / options.connections);
        open_connection(&all[i], i);
    }
    for (int started = 0;;) {
        uint64_t now = now_us();
        for (; started < options.connections && all[started].starts_at <= now; started++)
            if (all[started].idle) begin(&all[started]);
        if (!opened && now - begun >= (uint64_t)(options.warmup * 1e6)) measuring = true, opened = now, mark("start");
        bool full = options.requests ? done >= (uint64_t)options.requests
                                     : now - opened >= (uint64_t)(options.seconds * 1e6);
        if (opened && !closed && full) measuring = false, stopping = true, closed = now, mark("stop");
        if (closed && (!flying || now - closed > (uint64_t)(options.drain * 1e6))) break;
        int found = epoll_wait(poller, ready, 256, started < options.connections ? 1 : 20);
        for (int i = 0; i < found; i++) on_readable(&all[ready[i].data.u32], (int)ready[i].data.u32);
    }
    double seconds = (double)(closed - opened) / 1e6;
    printf("{\"seconds\":%.4f,\"requests\":%lu,\"events\":%lu,\"errors\":%lu,\"mismatched\":%lu,\"events_missing\":%lu,"
           "\"unfinished\":%d,\"answers_total\":%lu",
           seconds, (unsigned long)done, (unsigned long)arrived, (unsigned long)errors, (unsigned long)wrong,
           (unsigned long)missing, flying, (unsigned long)total);
    if (options.counters) {
        FILE *out = fopen(options.counters, "wb");
        if (!out || fwrite(seen.at, sizeof *seen.at, seen.count, out) != seen.count || fclose(out))
            perror("counters"), exit(1);
    }
    print_samples("latency", &latency);
    print_samples("first_event", &first);
    print_samples("event_delay", &delay);
    print_samples("gap", &gap);
    puts("}");
}
