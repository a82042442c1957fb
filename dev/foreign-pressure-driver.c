/* One operation of pressure's own C library, for dev/foreign-pressure.py. Arguments: verb,
 * queue, more; REDIS_HOST, REDIS_PORT, REDIS_USER and REDIS_PASSWORD. Ends with 0, or with
 * what lockkeeper would end with: 81 missing, 82 exists, 83 closed, else 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "pressure.h"

static int code(pressureStatus status) {
    switch (status) {
        case kPressureStatus_Success: return 0;
        case kPressureStatus_QueueClosed: return 83;
        case kPressureStatus_QueueAlreadyExistsError: return 82;
        case kPressureStatus_QueueDoesNotExistError: return 81;
        default: return 1;
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    redisContext *context = redisConnect(getenv("REDIS_HOST"), atoi(getenv("REDIS_PORT")));
    if (context == NULL || context->err) return 69;
    freeReplyObject(redisCommand(context, "AUTH %s %s", getenv("REDIS_USER"), getenv("REDIS_PASSWORD")));
    pressureQueue *queue = pressure_connect(context, "__pressure__", argv[2]);
    const char *verb = argv[1];

    if (!strcmp(verb, "create")) return code(pressure_create(queue, atoi(argv[3])));
    if (!strcmp(verb, "close")) return code(pressure_close(queue));
    if (!strcmp(verb, "delete")) return code(pressure_delete(queue));
    if (!strcmp(verb, "length")) {
        int length = 0;
        pressureStatus status = pressure_length(queue, &length);
        printf("%d\n", length);
        return code(status);
    }
    if (!strcmp(verb, "closed")) {
        bool closed = false;
        pressureStatus status = pressure_closed(queue, &closed);
        puts(closed ? "True" : "False");
        return code(status);
    }
    if (!strcmp(verb, "put")) {
        char *line = NULL;
        size_t size = 0;
        ssize_t length;
        while ((length = getline(&line, &size, stdin)) != -1) {
            if (length > 0 && line[length - 1] == '\n') length--;
            pressureStatus status = pressure_put(queue, line, (int)length);
            if (status != kPressureStatus_Success) return code(status);
        }
        return 0;
    }
    if (!strcmp(verb, "get")) {
        for (;;) {
            char *element = NULL;
            int size = 0;
            pressureStatus status = pressure_get(queue, &element, &size);
            if (status == kPressureStatus_QueueClosed) return 0;
            if (status != kPressureStatus_Success) return code(status);
            fwrite(element, 1, (size_t)size, stdout);
            putchar('\n');
            fflush(stdout);
            free(element);
        }
    }
    return 64;
}
