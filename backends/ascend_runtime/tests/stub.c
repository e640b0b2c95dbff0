/* A libascendcl with the least that one can have, for what an emulator of a whole runtime cannot show: raw bytes of
 * structures, functions that are missing, and starts that fail. Built by the tests with one macro for each oddity. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#ifndef STUB_INIT
#define STUB_INIT 0
#endif
#ifndef STUB_SOC
#define STUB_SOC "Ascend910B4"
#endif
#ifndef STUB_COUNT
#define STUB_COUNT 0
#endif

#ifndef STUB_MESSAGE
#define STUB_MESSAGE "the stub does not start"
#endif

static _Thread_local const char *message;
#ifndef STUB_DEVICES
#define STUB_DEVICES 8
#endif

static _Thread_local void *context;
static _Thread_local int32_t current = -1;
static int contexts[8];

/* What the tests look at, through ctypes. */
EXPORT int stub_finalised;
EXPORT int stub_resets;
EXPORT unsigned char stub_attributes[32]; /* bytes of the aclrtMemcpyBatchAttr of the last batch */
EXPORT size_t stub_batch_items;
EXPORT unsigned char stub_answer[28] = {2, 0, 0, 0, 1, 0, 0, 0, 0, 16, 0, 0}; /* bytes of an aclrtPtrAttributes */

EXPORT int aclInit(const char *config) {
    (void)config;
    if (STUB_INIT != 0) {
        message = STUB_MESSAGE;
    }
    return STUB_INIT;
}

EXPORT int aclFinalize(void) {
    ++stub_finalised;
    return 0;
}

EXPORT const char *aclrtGetSocName(void) { return STUB_SOC; }

EXPORT int aclrtGetDeviceCount(uint32_t *count) {
    *count = STUB_DEVICES;
    return STUB_COUNT;
}

EXPORT int aclrtSetDevice(int32_t device) {
    if (device < 0 || device >= 8) {
        return 107001;
    }
    current = device;
    context = &contexts[device];
    return 0;
}

EXPORT int aclrtResetDevice(int32_t device) {
    (void)device;
    ++stub_resets;
    return 0;
}

EXPORT int aclrtGetDevice(int32_t *device) {
    *device = current;
    return current < 0 ? 107002 : 0;
}

EXPORT int aclrtGetCurrentContext(void **found) {
    *found = context;
    return context == NULL ? 107002 : 0;
}

EXPORT int aclrtSetCurrentContext(void *given) {
    context = given;
    current = (int32_t)((int *)given - contexts);
    return 0;
}

EXPORT int aclrtMalloc(void **address, size_t nbytes, int policy) {
    (void)policy;
    *address = malloc(nbytes);
    return *address == NULL ? 207001 : 0;
}

EXPORT int aclrtFree(void *address) {
    free(address);
    return 0;
}

EXPORT int aclrtMallocHost(void **address, size_t nbytes) {
    *address = malloc(nbytes);
    return *address == NULL ? 207001 : 0;
}

EXPORT int aclrtFreeHost(void *address) {
    free(address);
    return 0;
}

EXPORT int aclrtMemcpyAsync(void *destination, size_t room, const void *source, size_t count, int kind, void *stream) {
    (void)room, (void)kind, (void)stream;
    memcpy(destination, source, count);
    return 0;
}

EXPORT int aclrtCreateStream(void **stream) {
    *stream = malloc(1);
    return 0;
}

EXPORT int aclrtDestroyStream(void *stream) {
    free(stream);
    return 0;
}

#ifndef STUB_WITHOUT_SYNCHRONIZE
EXPORT int aclrtSynchronizeStream(void *stream) {
    (void)stream;
    return 0;
}
#endif

#ifdef STUB_NEWER
EXPORT const char *aclGetRecentErrMsg(void) {
    const char *text = message;
    message = NULL;
    return text;
}

EXPORT int aclrtPointerGetAttributes(const void *address, void *attributes) {
    (void)address;
    memcpy(attributes, stub_answer, sizeof stub_answer);
    return 0;
}

EXPORT int aclrtMemcpyBatch(void **destinations, size_t *rooms, void **sources, size_t *sizes, size_t count,
                            void *attributes, size_t *indexes, size_t attribute_count, size_t *fail_index) {
    (void)rooms, (void)indexes, (void)attribute_count, (void)fail_index;
    memcpy(stub_attributes, attributes, sizeof stub_attributes);
    stub_batch_items = count;
    for (size_t item = 0; item < count; ++item) {
        memcpy(destinations[item], sources[item], sizes[item]);
    }
    return 0;
}
#endif
