#include "ctrl0000base.h"
#define NV0000_CTRL_CMD_X (0x201)
#define NV0000_X 7:0
typedef struct {
    NvU32 a;
    NV_DECLARE_ALIGNED(NvU64 b, 8);
} NV0000_CTRL_X_PARAMS;
