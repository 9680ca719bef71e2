/* What Linux says of socket options and of kinds of sockets. Nothing of the VM's or of the host's is looked at: tests/shim runs this without KVM. */
#ifndef AFW_SOCKOPT_H
#define AFW_SOCKOPT_H
#include <stdint.h>
#include "abi.h"

#define SOCKOPT_ROOM 16              /* bytes that the shim keeps of an option */
/* AFW_OP_SOCKET, with v for the bytes at a3: zeroed or what the program gave; pid: the guest's; -> as the operation */
int64_t socket_op(const struct afw_sqe *e, uint8_t v[SOCKOPT_ROOM], uint32_t pid);
#endif
