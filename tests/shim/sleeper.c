/* Waits: for a minute, or with an argument for ever. */
#include "check.h"

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        pause();
    return (int)sleep(60);
}
