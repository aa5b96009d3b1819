package incident

const writerPath = "PODGAUGE_TEST_WRITER"

func writeUntilKilled(path string) {}
