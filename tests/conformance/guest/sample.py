"""Cases that bench/conformance.py is tried on: some do in a VM what they do natively, some do not."""

import os
import signal
import subprocess
import time
import unittest

VM = os.path.exists("/proc/agentfw")


class Sample(unittest.TestCase):
    def test_a_fails_in_vm(self):
        self.assertFalse(VM, "in a VM")

    def test_b_skipped_in_vm(self):
        if VM:
            self.skipTest("not here")

    def test_c_hangs_in_vm(self):
        while VM:
            time.sleep(1)

    def test_d_same(self):
        print("what tests write is not taken for a result")

    def test_e_crashes_in_vm(self):
        if VM:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_f_same(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertTrue(number < 3)

    def test_g_has_a_child(self):
        subprocess.run(["/bin/true"], check=True)

    def test_g_would_have_a_child(self):
        with self.assertRaises(FileNotFoundError):
            os.execv("/nowhere", ["nowhere"])

    def test_g_would_like_a_child(self):
        try:
            subprocess.run(["/bin/true"], check=True)
        except OSError:
            self.assertFalse(VM, "for another reason")

    def test_h_fails_everywhere(self):
        self.fail()

    def test_i_skipped_everywhere(self):
        self.skipTest("for the same reason")

    def test_i_leaves_a_child(self):
        type(self).child = subprocess.Popen(["/bin/sleep", "1000"])

    def test_i_z_has_no_child_of_its_own(self):
        self.assertFalse(VM)

    def test_j_hangs_without_its_child(self):
        try:
            self.child.terminate()
            self.child.wait()
        except AttributeError:
            while VM:
                time.sleep(1)

    def test_j_known(self):
        self.assertFalse(VM)

    def test_k_stale(self):
        pass

    @unittest.expectedFailure
    def test_l_expected(self):
        self.fail()

    def test_m_subtest_fails_in_vm(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertFalse(VM and number == 1)


class SetUp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if VM:
            raise OSError("no set-up in a VM")

    def test_missing_in_vm(self):
        pass


class SetUpHasChild(unittest.TestCase):
    """What a class's set-up needs a child process for."""

    @classmethod
    def setUpClass(cls):
        try:
            cls.found = not subprocess.run(["/bin/true"]).returncode
        except OSError:
            cls.found = False

    def test_n_skipped_in_vm(self):
        if not self.found:
            self.skipTest("nothing found")
