/* The answers of the mock engine, as templates with holes, for the mock that fills them and the load generator
 * that compares what arrives with them. The shapes are vLLM 0.32's own: entrypoints/openai/chat_completion/protocol.py
 * and serving.py (whole answers carry every field, chunks leave out what was never set).
 *
 * Everything that differs between two answers follows from the answer's counter, which is the text of its first
 * token: token ids and log-probs can be checked wherever the text arrives. */
#ifndef HONE_BENCH_ANSWERS_H
#define HONE_BENCH_ANSWERS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 60, EVENTS = TOKENS + 2, PROMPT_TOKENS = 24, STAMP_SLOTS = 1 << 14 };

/* What a hole holds. The first three may have any length on the client's side: a gateway may name them anew. */
enum kind { ID, CREATED, MODEL, COUNTER, COUNTER_BYTES, TOKEN_ID, LOGPROB };

struct hole {
    int at, kind, index;
};

struct template {
    char *text;
    int length, holes;
    struct hole hole[2 * TOKENS + 8];
};

static const int HOLE_WIDTH[] = {32, 10, 4, 8, 23, 5, 7};
static const char *const HOLE_START[] = {
    "00000000000000000000000000000000", "1764531000", "base", "00000000", "48,48,48,48,48,48,48,48", "00000", "0000000"};

static inline uint32_t token_id(uint32_t counter, int index) {
    return 10000 + (counter * 61u + (uint32_t)index * 7919u) % 90000u;
}

/* The first seven decimals of the log-prob's absolute value. */
static inline uint32_t logprob_digits(uint32_t counter, int index) {
    return 1 + (counter * 7919u + (uint32_t)index * 104729u) % 8999999u;
}

static inline void put(struct template *t, const char *text) {
    size_t length = strlen(text);
    t->text = realloc(t->text, (size_t)t->length + length + 1);
    memcpy(t->text + t->length, text, length + 1);
    t->length += (int)length;
}

static inline void put_hole(struct template *t, int kind, int index) {
    t->hole[t->holes++] = (struct hole){t->length, kind, index};
    put(t, HOLE_START[kind]);
}

static inline void put_number(struct template *t, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    put(t, text);
}

/* Token 0 is the counter, the others are three letters behind a blank. */
static inline void put_token(struct template *t, int index) {
    char text[5] = {' ', (char)('a' + index % 26), (char)('a' + index * 7 % 26), (char)('a' + index * 11 % 26), 0};
    if (index == 0) put_hole(t, COUNTER, 0);
    else put(t, text);
}

static inline void put_token_bytes(struct template *t, int index) {
    char text[32];
    snprintf(text, sizeof text, "32,%d,%d,%d", 'a' + index % 26, 'a' + index * 7 % 26, 'a' + index * 11 % 26);
    if (index == 0) put_hole(t, COUNTER_BYTES, 0);
    else put(t, text);
}

static inline void put_logprob(struct template *t, int index) {
    put(t, "{\"token\":\"");
    put_token(t, index);
    put(t, "\",\"logprob\":-0.");
    put_hole(t, LOGPROB, index);
    put(t, "123706817,\"bytes\":[");
    put_token_bytes(t, index);
    put(t, "],\"top_logprobs\":[]}");
}

static inline void put_prompt_ids(struct template *t, bool captured) {
    if (!captured) {
        put(t, "null");
        return;
    }
    for (int i = 0; i < PROMPT_TOKENS; i++) {
        put(t, i ? "," : "[");
        put_number(t, 1000 + i);
    }
    put(t, "]");
}

static inline void put_usage(struct template *t) {
    put(t, "\"usage\":{\"prompt_tokens\":");
    put_number(t, PROMPT_TOKENS);
    put(t, ",\"total_tokens\":");
    put_number(t, PROMPT_TOKENS + TOKENS);
    put(t, ",\"completion_tokens\":");
    put_number(t, TOKENS);
}

static inline void put_start(struct template *t, const char *object) {
    put(t, "{\"id\":\"chatcmpl-");
    put_hole(t, ID, 0);
    put(t, "\",\"object\":\"");
    put(t, object);
    put(t, "\",\"created\":");
    put_hole(t, CREATED, 0);
    put(t, ",\"model\":\"");
    put_hole(t, MODEL, 0);
    put(t, "\",\"choices\":[");
}

/* A whole answer; captured: with the log-probs and token ids that were asked for. */
static inline void build_answer(struct template *t, bool captured) {
    put_start(t, "chat.completion");
    put(t, "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"");
    for (int i = 0; i < TOKENS; i++) put_token(t, i);
    put(t, "\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,\"reasoning\":null},\"logprobs\":");
    if (!captured) put(t, "null");
    for (int i = 0; captured && i < TOKENS; i++) {
        put(t, i ? "," : "{\"content\":[");
        put_logprob(t, i);
    }
    put(t, captured ? "]},\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":"
                    : ",\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null");
    for (int i = 0; captured && i < TOKENS; i++) {
        put(t, i ? "," : "[");
        put_hole(t, TOKEN_ID, i);
    }
    put(t, captured ? "]" : "");
    put(t, ",\"routed_experts\":null}],\"service_tier\":null,\"system_fingerprint\":null,");
    put_usage(t);
    put(t, ",\"prompt_tokens_details\":null,\"completion_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":");
    put_prompt_ids(t, captured);
    put(t, ",\"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
}

/* One event of a stream: 0 the role, 1..TOKENS the tokens, the last of them with the finish reason, then the end. */
static inline void build_event(struct template *t, int event, bool captured) {
    if (event == EVENTS - 1) {
        put(t, "data: [DONE]\n\n");
        return;
    }
    put(t, "data: ");
    put_start(t, "chat.completion.chunk");
    if (event == 0) {
        put(t, "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],"
               "\"prompt_token_ids\":");
        put_prompt_ids(t, captured);
        put(t, ",\"prompt_text\":null}\n\n");
        return;
    }
    put(t, "{\"index\":0,\"delta\":{\"content\":\"");
    put_token(t, event - 1);
    put(t, captured ? "\"},\"logprobs\":{\"content\":[" : "\"},\"logprobs\":null");
    if (captured) {
        put_logprob(t, event - 1);
        put(t, "]}");
    }
    put(t, event == TOKENS ? ",\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":"
                           : ",\"finish_reason\":null,\"token_ids\":");
    if (captured) {
        put(t, "[");
        put_hole(t, TOKEN_ID, event - 1);
        put(t, "]");
    } else {
        put(t, "null");
    }
    put(t, "}]}\n\n");
}

/* The event before the end when the request has stream_options.include_usage. */
static inline void build_usage_event(struct template *t) {
    put(t, "data: ");
    put_start(t, "chat.completion.chunk");
    put(t, "],");
    put_usage(t);
    put(t, "}}\n\n");
}

#endif
