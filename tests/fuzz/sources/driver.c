// SPDX-License-Identifier: Apache-2.0
/*
 * libFuzzer's place where there is no clang: `TARGET -max_total_time=SECONDS -seed=N CORPUS`. Mutates without coverage. An input
 * that ends the process is left as `crash` in the current folder.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LARGEST 4096
#define SEEDS 256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_set_death_callback(void (*callback)(void));

static uint8_t seeds[SEEDS][LARGEST], now_running[LARGEST];
static size_t sizes[SEEDS], running_size, count;
static uint64_t state = 88172645463325252ull;

static uint32_t draw(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return below ? (uint32_t)(state >> 11) % below : 0;
}

static void leave(void)
{
	int fd = open("crash", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	(void)!write(fd, now_running, running_size);
	close(fd);
}

static void read_seeds(const char *folder)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	char path[4096];
	FILE *file;

	while (dir && count < SEEDS && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
		if (!file)
			continue;
		sizes[count] = fread(seeds[count], 1, LARGEST, file);
		count++;
		fclose(file);
	}
	if (dir)
		closedir(dir);
	if (!count)
		count = 1;
}

static void mutate(void)
{
	uint32_t seed = draw((uint32_t)count), times = 1 + draw(4), at, other;

	running_size = sizes[seed];
	memcpy(now_running, seeds[seed], running_size);
	while (times--) {
		at = draw((uint32_t)running_size);
		switch (draw(5)) {
		case 0:
			if (running_size)
				now_running[at] ^= (uint8_t)(1u << draw(8));
			break;
		case 1:
			if (running_size)
				now_running[at] = (uint8_t)draw(256);
			break;
		case 2:
			running_size = at;
			break;
		case 3:
			if (running_size < LARGEST)
				now_running[running_size++] = (uint8_t)draw(256);
			break;
		default:
			other = draw((uint32_t)count);
			if (at < sizes[other]) {
				memcpy(now_running + at, seeds[other] + at, sizes[other] - at);
				if (running_size < sizes[other])
					running_size = sizes[other];
			}
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t done = 0;
	double seconds = 1;
	time_t end;
	int i;

	for (i = 1; i < argc; i++) {
		if (sscanf(argv[i], "-max_total_time=%lf", &seconds) == 1)
			continue;
		if (sscanf(argv[i], "-seed=%d", &(int){ 0 }) == 1)
			state ^= strtoull(argv[i] + 6, NULL, 10) << 20;
		else if (argv[i][0] != '-')
			read_seeds(argv[i]);
	}
	if (!count)
		count = 1;
	__sanitizer_set_death_callback(leave);
	end = time(NULL) + (time_t)(seconds < 1 ? 1 : seconds);
	while (done & 0xff || time(NULL) < end) {
		if (done < count) {
			running_size = sizes[done];
			memcpy(now_running, seeds[done], running_size);
		} else {
			mutate();
		}
		LLVMFuzzerTestOneInput(now_running, running_size);
		done++;
	}
	fprintf(stderr, "stat::number_of_executed_units: %llu\n", (unsigned long long)done);
	return 0;
}
