package capture

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// A capture has no UUID, serial number or name of a host or pod: only texts of
// known forms are kept.
const (
	masked = "masked"

	driverVersion = `^\d{1,4}(\.\d{1,4}){1,3}$`
	vbiosVersion  = `^[0-9A-F]{2}(\.[0-9A-F]{2}){4}$`
	uuid          = `^((?:MIG-)?(?:GPU-)?)[0-9a-fA-F-]{36}((?:/\d{1,3}){0,2})$`

	// modelWord is a word in the name of a model: NVIDIA, RTX, A100-SXM4-80GB,
	// 1g.10gb. Names of hosts and pods are in lower case.
	modelWord = `^(` + modelCode + `(-` + modelCode + `|-` + modelNumber + `){0,3}|` + modelNumber + `|` +
		migProfile + `)$`
	modelCode   = `([A-Z][A-Za-z]{0,11}|[A-Z]{1,4}\d{1,4}[A-Za-z]{0,2})`
	modelNumber = `\d{1,4}[A-Z]{0,2}`
	migProfile  = `(\dc\.)?\dg\.\d{1,3}gb([+-][a-z.]{2,4})?`
)

// maskText masks a text in an answer. The expression is compiled here, because
// as a global it would take memory of each daemon.
func maskText(c *Call, text string) string {
	form := map[string]string{
		"nvmlSystemGetDriverVersion": driverVersion, "nvmlDeviceGetVbiosVersion": vbiosVersion,
		"nvmlDeviceGetName": modelWord, "nvmlDeviceGetUUID": uuid,
	}[c.Function]
	expression := regexp.MustCompile(form)
	switch {
	case form == uuid && text != "":
		gpu, mig := 0, -1 // a path without a MIG device has one number
		_, _ = fmt.Sscanf(c.Of, "gpu%d/mig%d", &gpu, &mig)
		parts := append(expression.FindStringSubmatch(text), "", "", "")
		return fmt.Sprintf("%s00000000-0000-0000-%04d-%012d%s", parts[1], mig+1, gpu, parts[2])
	case form == modelWord:
		words := strings.Fields(text)
		for i, word := range words {
			if !expression.MatchString(word) {
				words[i] = masked
			}
		}
		return strings.Join(words, " ")
	case text != "" && (form == "" || !expression.MatchString(text)):
		return masked
	}
	return text
}

// maskedValue returns a value for JSON, with masked texts, and without empty
// fields, pointers and handles. Numbers that JSON lacks are null. A text in an
// array of bytes becomes "x"; NVML fills an unknown text with 255.
func maskedValue(c *Call, v reflect.Value) any {
	switch v.Kind() {
	case reflect.String:
		return maskText(c, v.String())
	case reflect.Float64:
		if f := v.Float(); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
		return nil
	case reflect.Struct:
		fields := map[string]any{}
		for name, field := range v.Fields() {
			kind, isText := field.Kind(), false
			if kind == reflect.Array {
				isText = field.Type().Elem().Size() == 1 && v.Type() != reflect.TypeFor[nvml.FieldValue]()
			}
			switch {
			case kind == reflect.Interface, kind == reflect.Pointer,
				kind != reflect.Float64 && field.IsZero(): // otherwise 0 would be null
			case isText && field.Index(0).CanUint() && field.Index(0).Uint() != 0xff: // otherwise there is no text
				fields[name.Name] = []int{'x'}
			case !isText:
				fields[name.Name] = maskedValue(c, field)
			}
		}
		return fields
	case reflect.Slice, reflect.Array:
		elements, length := []any{}, 0
		for i := range v.Len() {
			elements = append(elements, maskedValue(c, v.Index(i)))
			if !v.Index(i).IsZero() {
				length = i + 1
			}
		}
		return elements[:length]
	}
	return v.Interface()
}
