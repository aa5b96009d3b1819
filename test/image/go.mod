module github.com/podgauge/podgauge/test/image

go 1.26.0
