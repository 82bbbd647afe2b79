/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers in byte arrays, whatever the machine. */
#ifndef CUI_BYTES_H
#define CUI_BYTES_H

#include <stdint.h>

static inline void cui_put16(uint8_t *bytes, uint16_t value)
{
	bytes[0] = value;
	bytes[1] = value >> 8;
}

static inline void cui_put32(uint8_t *bytes, uint32_t value)
{
	cui_put16(bytes, value);
	cui_put16(bytes + 2, value >> 16);
}

static inline void cui_put64(uint8_t *bytes, uint64_t value)
{
	cui_put32(bytes, value);
	cui_put32(bytes + 4, value >> 32);
}

static inline uint16_t cui_get16(const uint8_t *bytes)
{
	return bytes[0] | bytes[1] << 8;
}

static inline uint32_t cui_get32(const uint8_t *bytes)
{
	return cui_get16(bytes) | (uint32_t)cui_get16(bytes + 2) << 16;
}

static inline uint64_t cui_get64(const uint8_t *bytes)
{
	return cui_get32(bytes) | (uint64_t)cui_get32(bytes + 4) << 32;
}

#endif
